"""The doctor in real containers: no findings in a sound container, and every finding in a broken one."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import containers, documents
from tests.containers import RunInImage
from tooling.pins import advisories, choose

# What the machine that runs the tests may lack.
OF_THE_MACHINE = {"plan", "memory", "open files", "NUMA", "bf16"}


@dataclass(frozen=True)
class Examined:
    """A doctor's answer: status by name, and everything by name for what is not ok."""

    code: int
    statuses: dict[str, str]
    broken: dict[str, dict[str, str]]


def examine(done: subprocess.CompletedProcess[str]) -> Examined:
    assert done.returncode in (0, 1), done
    document = json.loads(done.stdout)
    assert documents.missing("doctor", document) == []
    found = document["checks"]
    for check in found:
        assert set(check) == {"name", "status", "detail", "fix"}
        assert bool(check["fix"]) is (check["status"] != "ok"), check
    broken = {check["name"]: check for check in found if check["status"] != "ok"}
    return Examined(
        done.returncode,
        {check["name"]: check["status"] for check in found},
        {name: check for name, check in broken.items() if name not in OF_THE_MACHINE},
    )


def test_a_sound_container_has_nothing_broken(run_in_image: RunInImage) -> None:
    found = examine(run_in_image("doctor", "--json", docker_args=("--shm-size", "2g")))
    assert (found.code, found.broken) == (0, {})
    assert set(found.statuses) >= {
        *("launcher", "CPU", "CPUs", "CPU quota", "NUMA", "memory", "plan", "/dev/shm", "open files", "versions"),
        "advisories",
        *("interface", "preload tcmalloc", "preload Intel OpenMP", "bf16", "allreduce gloo", "allreduce ccl"),
    }


def test_each_advisory_for_the_versions_is_a_warning(run_in_image: RunInImage, tmp_path: Path) -> None:
    """The advisories of an old row, mounted into the image of the default pin."""
    known = choose.choose("2.8", torch_source="default").advisories
    file = tmp_path / "advisories.json"
    file.write_text(advisories.document(known), encoding="utf-8")
    mount = ("--volume", f"{file}:/opt/cpu-train-stack/advisories.json:ro")
    done = run_in_image("doctor", "--quick", "--json", docker_args=mount, timeout=60)
    found = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "advisories"]
    assert done.returncode == 0
    assert [check["detail"] for check in found] == [str(advisory) for advisory in known]
    assert {check["status"] for check in found} == {"warning"}


def test_every_broken_part_is_reported_and_nothing_else(run_in_image: RunInImage) -> None:
    """At once: shared memory for two ranks, tcmalloc, packages, libfabric and an interface are not there."""
    site_packages = "/opt/venv/lib/python3*/site-packages"
    breaking = (
        "rm -f /usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4*; "
        f"mv {site_packages}/psutil-*.dist-info {site_packages}/sentencepiece-*.dist-info /tmp; "
        "sed -i 's/^numpy==[0-9.]*/numpy==0.1/' /opt/cpu-train-stack/lock.txt; "
        "rm -f /opt/venv/lib/libfabric.so*; "
        "exec entrypoint doctor --json --local-world-size 2"
    )
    found = examine(
        run_in_image(
            *("sh", "-c", breaking),
            env={"GLOO_SOCKET_IFNAME": "eth9"},
            docker_args=("--shm-size", "16m", "--user", "root"),
        )
    )
    assert found.code == 1
    assert {name: check["status"] for name, check in found.broken.items()} == {
        "/dev/shm": "warning",
        "preload tcmalloc": "warning",
        "versions": "error",
        "interface": "error",
        "allreduce ccl": "error",
    }
    assert found.statuses["allreduce gloo"] == found.statuses["preload Intel OpenMP"] == "ok"
    assert "16 of 16 MiB free" in found.broken["/dev/shm"]["detail"]
    assert "--shm-size" in found.broken["/dev/shm"]["fix"]
    assert "libtcmalloc-minimal4" in found.broken["preload tcmalloc"]["fix"]
    assert "psutil, sentencepiece missing" in found.broken["versions"]["detail"]
    assert "ccl needs libfabric.so.1" in found.broken["allreduce ccl"]["detail"]
    assert "'eth9'" in found.broken["interface"]["detail"]


@pytest.fixture(scope="module")
def network(image: str) -> Iterator[str]:
    """A network on which node-0 answers doctors at port 29500."""
    name = containers.unique_name()
    serve = ["docker", "run", "--rm", "--detach", "--name", f"{name}-0", "--network", name, "--hostname", "node-0"]
    try:
        subprocess.run(["docker", "network", "create", name], check=True, capture_output=True, timeout=60)
        subprocess.run(
            [*serve, "--network-alias", "node-0", image, "doctor", "--serve"],
            check=True,
            capture_output=True,
            timeout=60,
        )
        yield name
    finally:
        for argv in (["rm", "--force", f"{name}-0"], ["network", "rm", name]):
            subprocess.run(["docker", *argv], check=False, capture_output=True, timeout=60)


def ask(run_in_image: RunInImage, network: str, *argv: str, env: dict[str, str] | None = None) -> Examined:
    done = run_in_image("doctor", "--json", "--quick", *argv, env=env, docker_args=("--network", network))
    return examine(done)


def test_another_nodes_doctor_answers_with_its_clock_and_pin(run_in_image: RunInImage, network: str) -> None:
    found = ask(run_in_image, network, "--master-addr", "node-0")
    assert (found.code, found.broken) == (0, {})
    assert found.statuses["master"] == found.statuses["clock"] == found.statuses["interface"] == "ok"


def test_another_pin_on_the_master_is_an_error(run_in_image: RunInImage, network: str) -> None:
    found = ask(run_in_image, network, "--master-addr", "node-0", env={"CPU_TRAIN_STACK_PIN": "0.1"})
    assert found.broken["master"]["status"] == "error"
    assert "expected pin 0.1 as here" in found.broken["master"]["detail"]


def test_a_port_where_nothing_listens_is_a_warning(run_in_image: RunInImage, network: str) -> None:
    found = ask(run_in_image, network, "--master-addr", "node-0", "--master-port", "29501")
    assert (found.code, set(found.broken)) == (0, {"master"})
    assert "doctor --serve" in found.broken["master"]["fix"]


def test_the_wrong_interface_towards_the_master_is_an_error(run_in_image: RunInImage, network: str) -> None:
    found = ask(run_in_image, network, "--master-addr", "node-0", env={"GLOO_SOCKET_IFNAME": "lo"})
    assert (found.code, set(found.broken)) == (1, {"interface"})
    assert "loopback" in found.broken["interface"]["detail"]
    assert found.broken["interface"]["fix"] == "unset GLOO_SOCKET_IFNAME"


@pytest.mark.parametrize(
    ("addr", "said"),
    [("no.invalid", "does not resolve"), ("10.99.99.99", "no route to MASTER_ADDR 10.99.99.99")],
    ids=["a wrong name", "no way"],
)
def test_a_master_that_cannot_be_reached_is_an_error(run_in_image: RunInImage, addr: str, said: str) -> None:
    found = ask(run_in_image, "none", "--master-addr", addr)
    assert (found.code, set(found.broken)) == (1, {"master"})
    assert said in found.broken["master"]["detail"]
    assert found.broken["master"]["fix"]


def test_a_read_only_container_without_tmp_is_a_warning(run_in_image: RunInImage) -> None:
    found = examine(run_in_image("doctor", "--json", "--quick", docker_args=("--read-only",)))
    assert (found.code, found.statuses["temporary files"], set(found.broken)) == (
        0,
        "warning",
        {"temporary files"},
    )
    assert "--tmpfs /tmp" in found.broken["temporary files"]["fix"]


def test_the_table_has_a_line_for_each_check_and_the_fix_below(run_in_image: RunInImage) -> None:
    done = run_in_image("doctor", "--quick", env={"GLOO_SOCKET_IFNAME": "eth9"})
    assert done.returncode == 1
    (at,) = [at for at, line in enumerate(done.stdout.splitlines()) if line.startswith("interface  ")]
    assert done.stdout.splitlines()[at].split()[1] == "error"
    assert "fix: unset GLOO_SOCKET_IFNAME" in done.stdout


def test_rank_0_prints_what_the_job_runs_on(run_in_image: RunInImage) -> None:
    show = "import torch.distributed as dist; print(dist.get_backend())"
    jobs = [
        f"entrypoint launch --nproc-per-node 2 -- run {options} /tmp/show.py" for options in ("", "--backend gloo")
    ]
    script = f'echo "{show}" >/tmp/show.py; ' + "; echo next >&2; ".join(jobs)
    done = run_in_image("sh", "-c", script, docker_args=("--shm-size", "2g"))
    assert done.stdout.split() == ["ccl", "ccl", "gloo", "gloo"], done.stderr
    loud, gloo = (part.strip().splitlines() for part in done.stderr.split("next\n"))
    shown = dict(line.split(maxsplit=1) for line in loud)
    assert len(loud) <= 8
    assert shown["ranks"] == "2 on 1 node, started by torchrun"
    assert shown["group"] == "ccl, shared memory within a node"
    assert "libtcmalloc" in shown["preloads"]
    assert "libiomp5.so" in shown["preloads"]
    assert "group     gloo, tcp on lo" in gloo
