"""The doctor in the image: its report, and the checks that start no rank."""

from __future__ import annotations

import errno
import json
from dataclasses import replace

import pytest

from cpu_train_stack.cli import checks
from cpu_train_stack.cli.checks import Check, CheckStatus
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.options import parse_options
from cpu_train_stack.doctor import container, image, main
from cpu_train_stack.machine import shared_memory
from cpu_train_stack.machine.amx import AmxFacts
from cpu_train_stack.machine.facts import Core, MemoryLimit, NumaNode, Quota, Topology
from cpu_train_stack.machine.shared_memory import Space
from cpu_train_stack.placement import detect

MEBIBYTE, GIBIBYTE = 1 << 20, 1 << 30
HOST = Topology(
    machine="x86_64",
    model="Xeon",
    features=("amx_bf16", "avx512f"),
    bf16="amx_bf16",
    online=frozenset(range(8)),
    cores=(Core((0, 4), (0, 4)), Core((1,), (1, 5), node=1)),
    nodes=(NumaNode(0, (0, 4, 2, 6), GIBIBYTE), NumaNode(1, (1, 5, 3, 7), GIBIBYTE), NumaNode(2, (), GIBIBYTE)),
    memory_bytes=64 * GIBIBYTE,
)


# The report


def test_the_json_has_the_four_keys_of_every_check() -> None:
    document = json.loads(checks.document([Check("a", CheckStatus.WARNING, "b", "c")]))
    assert document == {"checks": [{"name": "a", "status": "warning", "detail": "b", "fix": "c"}]}


def test_a_row_has_its_fix_below_and_is_folded_under_its_detail() -> None:
    first, second, *more = checks.lines(Check("a", CheckStatus.ERROR, "word " * 20, "do this"), 60).splitlines()
    assert first.split()[:2] == ["a", "error"]
    assert second.index("word") == first.index("word")
    assert more[-1].strip() == "fix: do this"
    assert all(len(line) <= 60 for line in (first, second, *more))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], CheckStatus.OK),
        ([CheckStatus.OK, CheckStatus.WARNING], CheckStatus.WARNING),
        ([CheckStatus.ERROR, CheckStatus.WARNING], CheckStatus.ERROR),
    ],
)
def test_the_most_severe_status_counts(found: list[CheckStatus], expected: CheckStatus) -> None:
    assert checks.worst(Check("", status, "") for status in found) is expected


def test_a_check_that_crashes_is_an_error_line() -> None:
    def crash() -> list[Check]:
        raise ZeroDivisionError("division\nby zero")

    (check,) = checks.attempt("a", crash)
    assert (check.name, check.status) == ("a", CheckStatus.ERROR)
    assert check.detail == "the check itself failed: ZeroDivisionError: division by zero"
    assert check.fix


def test_a_usage_error_of_a_check_is_its_detail_and_its_fix() -> None:
    def refuse() -> list[Check]:
        raise UsageError("found a: b, expected c: do this")

    (check,) = checks.attempt("a", refuse)
    assert (check.status, check.detail, check.fix) == (CheckStatus.ERROR, "found a: b, expected c", "do this")


@pytest.mark.parametrize(
    "argv", [["--local-world-size", "0"], ["--master-port", "x"], ["--jsn"]], ids=lambda argv: argv[0]
)
def test_bad_usage_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError, match=argv[0]):
        parse_options(main.DoctorOptions, argv, "doctor", "")


# The machine


def test_the_cpus_are_reported_with_their_limit() -> None:
    check = container.cpus(HOST)
    assert "3 allowed (of 8 online, by a CPU set or an affinity mask): 0-1,4" in check.detail
    assert "2 cores of 2 hardware threads" in check.detail


def test_another_machine_is_an_error() -> None:
    assert container.machine(HOST).status is CheckStatus.OK
    check = container.machine(replace(HOST, machine="aarch64"))
    assert (check.status, check.fix) == (CheckStatus.ERROR, "use an x86_64 machine: the image is built for it")


def test_refused_amx_is_a_warning_with_its_fix() -> None:
    assert container.amx(AmxFacts(True, True, False, "6.1.0", 0)) == []
    (check,) = container.amx(AmxFacts(True, True, False, "5.10.0", errno.EINVAL))
    assert (check.name, check.status) == ("AMX", CheckStatus.WARNING)
    assert check.fix == "boot the node with Linux 5.16 or later"


def test_the_quota_is_reported_with_its_file() -> None:
    check = container.quota(replace(HOST, quota=Quota(1.5, "/sys/fs/cgroup/cpu.max")))
    assert check.detail == "1.5 CPUs for all processes of the container (/sys/fs/cgroup/cpu.max)"


@pytest.mark.parametrize(
    ("policy", "nodes", "status"),
    [("default", 3, CheckStatus.OK), ("refused", 3, CheckStatus.WARNING), ("refused", 1, CheckStatus.OK)],
)
def test_a_refused_memory_policy_is_a_warning_on_several_numa_nodes(
    policy: str, nodes: int, status: CheckStatus
) -> None:
    check = container.numa(replace(HOST, memory_policy=policy, nodes=HOST.nodes[:nodes]))
    assert check.status is status
    assert nodes == 1 or "2 nodes with CPUs, allowed CPUs on 0-1" in check.detail


def test_the_smaller_of_machine_and_limit_is_the_memory() -> None:
    limited = replace(HOST, memory_limit=MemoryLimit(3 * GIBIBYTE, "memory.max"))
    assert container.memory(HOST, 8).status is CheckStatus.OK
    check = container.memory(limited, 2)
    assert check.status is CheckStatus.WARNING
    assert "3.0 GiB (memory.max) for 2 ranks" in check.detail
    assert container.memory(limited, 1).status is CheckStatus.OK


def test_a_warning_of_the_topology_is_a_check() -> None:
    found = container.examine_machine(replace(HOST, warnings=("/sys cannot be read",)), 1)
    assert found[-1] == Check(
        "topology", CheckStatus.WARNING, "/sys cannot be read", "check what hides /proc or /sys"
    )


@pytest.mark.parametrize(
    ("soft", "status"),
    [(1024, CheckStatus.WARNING), (4096, CheckStatus.OK), (-1, CheckStatus.OK)],
    ids=["few", "enough", "none"],
)
def test_open_files_are_judged_by_the_needs_of_data_loading(soft: int, status: CheckStatus) -> None:
    assert container.open_files(soft).status is status


# /dev/shm


@pytest.mark.parametrize(
    ("free_mib", "ranks", "cpus", "status", "said"),
    [
        (64, 1, 64, CheckStatus.OK, "a single rank on a node needs little"),
        (1, 1, 2, CheckStatus.ERROR, "data loading workers of 1 rank will crash"),
        (
            16,
            2,
            2,
            CheckStatus.WARNING,
            "16 of 2048 MiB free; backend ccl needs 50 for 2 ranks on a host with 2 CPUs",
        ),
        (50, 2, 2, CheckStatus.OK, "backend ccl needs 50"),
        (1024, 2, 64, CheckStatus.WARNING, "backend ccl needs 1042 for 2 ranks on a host with 64 CPUs"),
    ],
    ids=["one rank", "nothing", "docker's least", "enough", "many CPUs"],
)
def test_shared_memory_is_judged_by_ranks_and_cpus(
    free_mib: int, ranks: int, cpus: int, status: CheckStatus, said: str
) -> None:
    check = container.shm(Space(2048 * MEBIBYTE, free_mib * MEBIBYTE), ranks, cpus)
    assert check.status is status
    assert said in check.detail
    assert bool(check.fix) is (status is not CheckStatus.OK)


def test_the_fix_for_shared_memory_is_a_sufficient_size() -> None:
    gigabytes = int(shared_memory.option(2, 64).split()[1].rstrip("g"))
    assert container.shm(Space(gigabytes * GIBIBYTE, gigabytes * GIBIBYTE), 2, 64).status is CheckStatus.OK


# Versions


LOCK = "# pin\ntorch==2.13.0+cpu \\\n    --hash=sha256:00\nPyYAML==6.0 \\\n    --hash=sha256:11\n"


def test_a_lock_is_read_by_canonical_names() -> None:
    assert image.parse_lock(LOCK) == {"torch": "2.13.0+cpu", "pyyaml": "6.0"}


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        (
            {"torch": "2.13.0+cpu", "pyyaml": "6.0", "more": "1"},
            CheckStatus.OK,
            "all 2 packages match the lock file",
        ),
        ({"torch": "2.13.0+cpu", "pyyaml": "5.0"}, CheckStatus.WARNING, "pyyaml 5.0 (the pin has 6.0)"),
        ({"torch": "2.13.0+cpu"}, CheckStatus.ERROR, "pyyaml missing"),
        (
            {"torch": "2.12.0", "pyyaml": "6.0", "oneccl-bind-pt": "2.13.0"},
            CheckStatus.ERROR,
            "oneccl-bind-pt 2.13.0 is built for torch 2.13.0, found torch 2.12.0",
        ),
    ],
    ids=["the lock's", "another", "missing", "another torch under ccl"],
)
def test_versions_are_compared_with_the_lock(found: dict[str, str], status: CheckStatus, said: str) -> None:
    check = image.versions("2.13", image.parse_lock(LOCK), found)
    assert check.status is status
    assert said in check.detail


def test_the_installed_packages_are_found() -> None:
    assert image.installed()["pytest"] == pytest.__version__


def test_the_fix_of_an_incomplete_placement_is_complete() -> None:
    with pytest.raises(UsageError) as caught:
        detect.detect({"RANK": "0", "WORLD_SIZE": "2"})
    check = checks.refusal("launcher", caught.value)
    assert check.detail.startswith("found RANK=0 WORLD_SIZE=2, but not LOCAL_RANK LOCAL_WORLD_SIZE")
    assert check.fix.startswith("unset these variables to run a single rank, or set the missing ones")


def test_control_characters_of_other_nodes_are_written_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = Check("versions", CheckStatus.OK, "node-0 has pin \x1b]0;title\x07")
    monkeypatch.setattr(main, "examine", lambda *_: [answer])
    assert main.main([]) == 0
    assert "\\x1b]0;title\\x07" in capsys.readouterr().out
