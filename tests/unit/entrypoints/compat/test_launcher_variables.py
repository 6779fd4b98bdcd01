"""The variables of other launchers, read by a script and by a library, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import cpu_train_stack

ROOT = Path(cpu_train_stack.__file__).parents[1]
# Runs code under a file's name, as a rank of two on its node and four in all, with the adaptation installed.
PROGRAM = """
import sys
from cpu_train_stack.compat import launcher_variables
from cpu_train_stack.adapt.adaptation import Situation
launcher_variables.supply_all(Situation((), {}, "ccl", 0, 4).named("launcher-variables"), sys)
name, code = sys.argv[1:]
exec(compile(code, name, "exec"), {"__name__": "module"})
"""
READ = """
import json, os, subprocess
names = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_RANK", "NO_SUCH"]
print(json.dumps({
    "values": [os.environ.get(name) for name in names],
    "bytes": (os.environb.get(b"PMI_RANK") or b"").decode(),
    "contains": "PMI_SIZE" in os.environ,
    "copied": "PMI_SIZE" in dict(os.environ),
    "child": subprocess.run(["env"], capture_output=True, text=True).stdout.count("PMI_"),
}))
os.environ.pop("MPI_LOCALRANKID", None)
os.environ["PMI_RANK"] = "9"
assert os.environ["PMI_RANK"] == os.getenv("PMI_RANK") == "9"
assert subprocess.run(["env"], capture_output=True, text=True).stdout.count("PMI_RANK=9") == 1
"""
RANK = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def read(file: str, **environment: str) -> tuple[dict[str, object], str]:
    """What code in this file read, and what was reported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, file, READ],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return json.loads(done.stdout), done.stderr


def test_a_script_reads_its_own_values_and_nothing_else_sees_them() -> None:
    seen, said = read("/data/train.py", **RANK)
    assert seen["values"] == ["3", "4", "1", "2", "3", None]
    assert (seen["bytes"], seen["contains"], seen["copied"], seen["child"]) == ("3", True, False, 0)
    assert "adapted (launcher-variables): the script reads PMI_RANK, which its launcher does not set" in said
    assert said.count("PMI_RANK") == 1


def test_a_library_reads_what_the_launcher_has_set() -> None:
    seen, said = read(str(Path(sysconfig.get_path("purelib")) / "accelerate" / "state.py"), **RANK)
    assert (seen["values"], seen["contains"], said) == ([None] * 6, False, "")


def test_a_launchers_own_value_stays() -> None:
    seen, said = read("/data/train.py", **RANK, PMI_RANK="7")
    assert seen["values"] == ["7", "4", "1", "2", "3", None]
    assert "PMI_RANK" not in said


def test_without_a_rank_nothing_is_invented() -> None:
    seen, _ = read("/data/train.py")
    assert seen["values"] == [None] * 6
