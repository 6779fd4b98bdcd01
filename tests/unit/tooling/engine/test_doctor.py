"""./inv doctor: each check from the text or the number that it reads, and the two forms in which it is shown."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cpu_train_stack.cli.checks import Check, CheckStatus, document
from cpu_train_stack.machine import cpus
from tests import documents
from tests.unit.tooling.engine.findings import BOOKWORM, COMPLETE, FACTS, NOTHING, STOPPED
from tooling.engine import doctor
from tooling.engine.doctor import (
    GIGABYTE,
    check_bf16,
    check_cpus,
    check_disk,
    check_docker,
    check_git,
    check_memory,
    check_system,
    examine,
    table,
)
from tooling.engine.find import EngineHost, Findings


@pytest.mark.parametrize(
    ("flags", "status", "detail"),
    [
        ("fpu avx512_bf16 amx_bf16 amx_tile", CheckStatus.OK, "amx_bf16"),
        ("fpu avx512_bf16", CheckStatus.OK, "avx512_bf16"),
        ("fpu avx512f avx2", CheckStatus.WARNING, "not faster than fp32"),
    ],
)
def test_bf16_names_the_best_instructions_of_the_cpu(flags: str, status: CheckStatus, detail: str) -> None:
    check = check_bf16(cpus.parse_model(["processor\t: 0\n", f"flags\t\t: {flags}\n", "bugs\t: x\n"]).bf16)
    assert check.status is status
    assert detail in check.detail


@pytest.mark.parametrize(
    ("free", "status"),
    [(6.0, CheckStatus.OK), (5.9, CheckStatus.WARNING), (3.0, CheckStatus.WARNING), (2.9, CheckStatus.ERROR)],
)
def test_disk_space_is_judged_by_what_the_demo_needs(free: float, status: CheckStatus) -> None:
    assert check_disk("disk", Path("/"), int(free * GIGABYTE)).status is status


@pytest.mark.parametrize(
    ("available", "status"), [(8_000_000, CheckStatus.OK), (2_000_000, CheckStatus.WARNING)], ids=["8 GB", "2 GB"]
)
def test_memory_is_judged_by_what_is_available(available: int, status: CheckStatus) -> None:
    assert check_memory(f"MemTotal:  16000000 kB\nMemAvailable:  {available} kB\n").status is status


def test_one_cpu_another_architecture_and_a_missing_git_are_reported() -> None:
    assert (check_cpus(1).status, check_cpus(2).status) == (CheckStatus.WARNING, CheckStatus.OK)
    assert check_system(BOOKWORM, "aarch64").status is CheckStatus.ERROR
    assert check_system(BOOKWORM, "x86_64").status is CheckStatus.OK
    assert (check_git(None).status, check_git("/usr/bin/git").status) == (CheckStatus.WARNING, CheckStatus.OK)


def statuses(findings: Findings, host: EngineHost) -> dict[str, str]:
    return {check.name: check.status.value for check in check_docker(findings, host)}


def test_a_complete_docker_is_ok_and_needs_no_fix() -> None:
    checks = check_docker(COMPLETE, BOOKWORM)
    assert {check.status for check in checks} == {CheckStatus.OK}
    assert {check.fix for check in checks} == {""}


def test_a_missing_part_is_a_warning_if_inv_installs_it_and_otherwise_an_error() -> None:
    warned = statuses(NOTHING, BOOKWORM)
    assert set(warned.values()) == {"warning"}
    refused = statuses(NOTHING, replace(BOOKWORM, root=False))
    assert refused.pop("mmdebstrap") == "warning"
    assert set(refused.values()) == {"error"}


def test_a_stopped_engine_and_an_old_engine_have_different_fixes() -> None:
    (stopped,) = (check for check in check_docker(STOPPED, BOOKWORM) if check.status is not CheckStatus.OK)
    assert (stopped.name, stopped.fix) == ("Docker Engine", "the first command that needs Docker starts Docker")
    old = replace(COMPLETE, engine=replace(FACTS, version="20.10.24+dfsg1"))
    (buildkit,) = (check for check in check_docker(old, BOOKWORM) if check.status is not CheckStatus.OK)
    assert (buildkit.name, buildkit.status) == ("BuildKit", CheckStatus.ERROR)
    assert "apt-get remove docker.io" in buildkit.fix


def test_the_json_has_the_four_keys_of_every_check() -> None:
    checks = json.loads(document([Check("a", CheckStatus.WARNING, "b", "c")]))["checks"]
    assert checks == [{"name": "a", "status": "warning", "detail": "b", "fix": "c"}]
    assert documents.missing("host-doctor", {"checks": checks}) == []


def test_the_table_prints_brackets_literally() -> None:
    out = StringIO()
    Console(file=out, width=100).print(table([Check("a", CheckStatus.ERROR, "[red]x[/red] [/]", "[bold]")]))
    assert "[red]x[/red] [/]" in out.getvalue()
    assert "[bold]" in out.getvalue()


def test_the_doctor_can_examine_this_machine() -> None:
    names = [check.name for check in examine()]
    assert names[:5] == ["system", "Python", "CPUs", "memory", "bf16"]
    assert {"Docker Engine", "docker client", "compose", "buildx", "mmdebstrap", "git"} <= set(names)


def test_the_disk_of_a_folder_below_a_closed_one_is_that_of_the_nearest_folder_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "var" / "lib" / "docker"
    (tmp_path / "var").mkdir()
    is_dir = Path.is_dir

    def as_user(path: Path) -> bool:  # the tests may run as root, who can enter every folder
        if path.is_relative_to(closed):
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", as_user)
    found = replace(COMPLETE, engine=replace(FACTS, root_dir=str(closed / "data")))
    monkeypatch.setattr(doctor, "find", lambda: found)
    (disk,) = (check for check in examine() if check.name == "disk for Docker")
    assert disk.detail.endswith(f"free at {tmp_path / 'var'}")
