"""Jobs on bare-metal hosts: the options, the hosts file, and the problems that the checks find."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.placement.hostfile import HostfileEntry
from tests.unit.tooling.hosts.host_jobs import HOSTS, job
from tooling.engine.ssh import Done, Remote, RemoteError
from tooling.hosts import checks, facts
from tooling.hosts.facts import Facts
from tooling.hosts.job import Job, forwarded_values, ranks_on_each, read_hosts
from tooling.pins import parse

FACTS = """\
user 1001 100 /home/me and you
free 60578
memory 16000000 kB
cpus 32
ssh 10.1.0.9 50000 10.1.0.1 2201
address 1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever
address 2: eth0    inet 10.1.0.1/24 brd 10.1.0.255 scope global eth0\\       valid_lft forever
address 7: bond1@eth1    inet 10.0.0.1/24 scope global bond1\\       valid_lft forever
listening LISTEN 0 128 0.0.0.0:2201 0.0.0.0:*
listening LISTEN 0 128 [::]:29500 [::]:*
cpu processor\t: 0
cpu model name\t: A CPU
cpu flags\t\t: fpu avx2 avx512f
"""


def test_an_unusable_hostfile_is_reported_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    with pytest.raises(UsageError, match="does not exist"):
        read_hosts(file)
    file.write_text("# nothing\n")
    with pytest.raises(UsageError, match="found no host"):
        read_hosts(file)
    file.write_text("first\nme@second # comment\n:2\n")
    with pytest.raises(UsageError, match=r"hosts: line 3: found ':2', expected NAME, USER@NAME"):
        read_hosts(file)
    file.write_bytes(b"\xff\n")
    with pytest.raises(UsageError, match="cannot be read"):
        read_hosts(file)


def test_ranks_per_host_come_from_the_option_else_from_the_slots_else_one() -> None:
    two = (HostfileEntry("a", slots=2), HostfileEntry("b", slots=2))
    assert ranks_on_each(two, None) == 2
    assert ranks_on_each(two, 1) == 1
    assert ranks_on_each(HOSTS, None) == 1
    assert ranks_on_each(HOSTS, 3) == 3
    with pytest.raises(UsageError, match="a has slots=2"):
        ranks_on_each(two, 3)
    with pytest.raises(UsageError, match="slots differ"):
        ranks_on_each((*two, HostfileEntry("c")), None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"launcher": "srun"}, "--launcher is 'srun'"),
        ({"command": ()}, "no command"),
        ({"command": ("--bf16",)}, "the command begins with '--bf16'"),
        ({"memory": "lots"}, "--memory is 'lots'"),
        ({"port": 80}, "--port is 80, expected 1024 to 65036"),
        ({"data": "here"}, "--data is 'here', expected an absolute path on the hosts"),
        ({"hub": '/a"b'}, "--hub is '/a\"b', expected an absolute path on the hosts, without commas, quotes"),
        ({"output": "/a,readonly"}, "--output is '/a,readonly'"),
        ({"image": "two words"}, "--image is 'two words'"),
        ({"image": "mine:1", "pin": "2.8"}, "--image names the image: do not combine it with --pin"),
    ],
)
def test_a_bad_option_is_reported_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        job(**change)
    assert message in str(caught.value)


def test_all_bad_options_are_in_one_line() -> None:
    bad: dict[str, Any] = {
        "name": "A B",
        "launcher": "x",
        "memory": "q",
        "port": 80,
        "data": "here",
        "env": ("1=",),
    }
    with pytest.raises(UsageError) as caught:
        Job(command=(), pin="0.0", **bad)
    line = str(caught.value)
    assert "\n" not in line
    assert [flag for flag in bad if f"--{flag}" not in line] == []
    for problem in ("launch needs --hosts", "no command", "0.0"):
        assert problem in line


def test_a_forwarded_variable_must_be_set_and_have_one_line() -> None:
    forwarding = job(env=("A",))
    assert forwarded_values(forwarding, {"A": "1 '2'", "B": "3"}) == b"A=1 '2'\n"
    with pytest.raises(UsageError, match="not set in your environment"):
        forwarded_values(forwarding, {})
    with pytest.raises(UsageError, match="several lines"):
        forwarded_values(forwarding, {"A": "1\n2"})
    with pytest.raises(UsageError, match="not text in UTF-8"):
        forwarded_values(forwarding, {"A": "\udcff"})
    with pytest.raises(UsageError, match="longer than 64 KiB"):
        forwarded_values(forwarding, {"A": "x" * 70_000})


def test_the_answer_of_a_host_is_parsed() -> None:
    its = facts.parse(FACTS)
    assert (its.uid, its.gid, its.home, its.cpus) == ("1001", "100", "/home/me and you", 32)
    assert its.free_bytes == 16_000_000 * 1024
    assert its.addresses == {"10.1.0.1": "eth0", "10.0.0.1": "bond1"}
    assert (its.ssh_address, its.ssh_port, its.listening) == ("10.1.0.1", "2201", frozenset({2201, 29500}))
    assert its.cpu.features == ("avx512f", "avx2")
    assert its.container_user == ("1001", "100")
    assert replace(its, uid="0").container_user == ("60578", "60578")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("10.1.0.1 2201", "10.1.0.1 22';id>/tmp/x;'"),
        ("10.1.0.1 2201", "10.1.0.1 0"),
        ("10.1.0.1 2201", "10.1.0.1 65536"),
        ("2: eth0 ", "2: $(id) "),
        ("10.0.0.1/24", "10.0.0.1.5/24"),
        ("user 1001", "user 1;id"),
        ("free 60578", "free 1;id"),
        ("memory 16000000", f"memory -{'9' * 4000}"),
        ("cpus 32", "cpus \u0663"),
        ("cpus 32", f"cpus {'9' * 16}"),
    ],
)
def test_a_host_cannot_choose_the_text_of_a_command_on_another_host(old: str, new: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        facts.parse(FACTS.replace(old, new))


@pytest.mark.parametrize(
    "answer",
    [
        "10.0.0.1 dev eth0 src 127.0.0.1/22';id>/home/op/x;echo${IFS}x>&2;'",
        "10.0.0.1 dev eth0 src fe80::1%';id;'",
        "10.0.0.1 dev $(id) src 10.0.0.2",
    ],
)
def test_a_route_that_is_a_command_is_refused(answer: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        facts.route(answer)


@pytest.mark.parametrize("answer", ["sha256:1", f"sha256:{'a' * 64}\nalpha:dead x", f"x{'a' * 70}"])
def test_an_answer_that_is_no_image_is_refused_in_one_line(answer: str) -> None:
    remote = SimpleNamespace(run=lambda _command: Done(0, f"{answer}\n", ""))
    with pytest.raises(RemoteError, match="expected an image's ID and content") as caught:
        checks._image(job(), cast(Remote, remote))
    assert "\n" not in str(caught.value)


def sound() -> Facts:
    return replace(facts.parse(FACTS), listening=frozenset({22}), image_id="sha256:1", image_content="1")


def judged(index: int, change: dict[str, Any], launcher: str = "torchrun") -> list[str]:
    """The problems if one host differs from the others."""
    some = [sound(), sound(), sound()]
    some[index] = replace(some[index], **change)
    return facts.problems(job(launcher=launcher), range(3), some)


def test_equal_hosts_with_free_resources_have_no_problems() -> None:
    assert judged(0, {}) == []


@pytest.mark.parametrize(
    ("index", "change", "expected"),
    [
        (1, {"free_bytes": 1 << 30}, "beta: 1.0 GiB of memory are free, expected 2.0 for 2 ranks"),
        (0, {"listening": frozenset({29500})}, "alpha: port 29500 is in use"),
        (2, {"clock": -3.0}, "gamma: its clock is -3.0 s off the clock of alpha"),
        (
            2,
            {"cpu": replace(sound().cpu, features=("avx2",))},
            "gamma: its CPU lacks avx512f, compared with alpha",
        ),
        (1, {"cpu": replace(sound().cpu, machine="aarch64")}, "beta: its CPU is aarch64, that of alpha x86_64"),
    ],
    ids=["memory", "port", "clock", "features", "architecture"],
)
def test_every_problem_of_a_host_is_reported_in_one_line(
    index: int, change: dict[str, object], expected: str
) -> None:
    found = judged(index, change)
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_the_first_host_needs_the_rendezvous_port_and_under_mpirun_all_need_the_port_of_sshd() -> None:
    assert judged(1, {"listening": frozenset({29500, 29999})}) == []
    found = judged(1, {"listening": frozenset({29999})}, "mpirun")
    assert [line.partition(",")[0] for line in found] == ["beta: port 29999 is in use"]


def test_only_the_first_host_of_the_job_needs_the_rendezvous_port() -> None:
    busy = replace(sound(), listening=frozenset({29500}))
    assert facts.problems(job(), [1, 2], [busy, busy]) == []


def test_a_clock_is_off_only_beyond_the_error_of_the_measurement() -> None:
    assert facts.clock_offset("105.5\n", 100.0, 101.0) == (5.0, 0.5)
    for no_time in ("nan", "inf", "-1e999", "1_0.5", "\u0663.5"):
        with pytest.raises(ValueError, match="is not a time"):
            facts.clock_offset(no_time, 100.0, 101.0)
    assert judged(1, {"clock": 1.4, "clock_error": 0.5}) == []


def test_a_different_image_is_reported() -> None:
    found = judged(2, {"image_id": "sha256:2", "image_content": "2"})
    assert [line.partition(" (")[0] for line in found] == [
        f"gamma: {parse.load().pin().image} differs from the image on alpha"
    ]


def test_an_image_is_the_same_under_another_id_of_another_image_store() -> None:
    assert judged(2, {"image_id": "sha256:2"}) == []


def test_candidates_are_addresses_of_the_first_host_and_the_resolved_one_comes_first() -> None:
    first = sound()
    assert facts.candidates(first, ["10.0.0.1"]) == ["10.0.0.1", "10.1.0.1"]
    assert facts.candidates(first, ["127.0.1.1", "192.0.2.7"]) == ["10.1.0.1", "10.0.0.1"]


def test_a_hosts_file_may_begin_with_localhost(tmp_path: Path) -> None:
    """ssh logs in to this machine at 127.0.0.1, which the other hosts resolve to themselves."""
    (tmp_path / "hosts").write_text("localhost\nnode1\nnode2\nnode3\n")
    first, *others = read_hosts(tmp_path / "hosts")
    assert (first.name, len(others)) == ("localhost", 3)
    here = replace(sound(), ssh_address="127.0.0.1")
    assert facts.candidates(here, ["127.0.0.1"]) == list(here.addresses)


def test_two_names_of_one_host_are_reported() -> None:
    assert facts.same_host(["beta", "gamma"], ["10.0.0.2", "10.0.0.3"]) == []
    (line,) = facts.same_host(["beta", "gamma"], ["10.0.0.2", "10.0.0.2"])
    assert line.startswith("gamma: is the same host as beta (10.0.0.2)")


def test_a_route_has_the_interface_and_the_source_address() -> None:
    assert facts.route("10.0.0.1 via 10.2.0.254 dev eth1 src 10.2.0.5 uid 1000 \\    cache") == (
        "eth1",
        "10.2.0.5",
    )
    with pytest.raises(ValueError, match="unreachable"):
        facts.route("RTNETLINK answers: Network is unreachable")
