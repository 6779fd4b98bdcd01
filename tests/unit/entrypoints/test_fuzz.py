"""For random arguments and variables, `entrypoint` starts, or prints one line and exits with code 2."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path
from typing import NoReturn

import pytest

from cpu_train_stack import __main__ as program
from cpu_train_stack.bench import arguments as bench
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.doctor import main as doctor
from cpu_train_stack.generate import command as generate
from cpu_train_stack.launch import agent
from cpu_train_stack.machine import network, numa
from cpu_train_stack.rank import script
from cpu_train_stack.rank.exit import report_usage_error
from cpu_train_stack.watch import main as watch
from tests import fuzzing

# A file that is named would be written: no device.
VALUES = tuple(value for value in fuzzing.VALUES if not value.startswith("/dev"))
FLAGS = (
    *("backend", "timeout", "quiet", "explain", "no-adapt", "adapt", "json", "html", "output", "seed", "m"),
    *("local-world-size", "local-rank", "world-size", "nnodes", "node-rank", "nproc-per-node", "master-addr"),
    *("master-port", "rdzv-backend", "rdzv-endpoint", "max-restarts", "hosts", "ranks-per-node", "env", "keys"),
    *("port", "interval", "since", "sizes", "dtypes", "collectives", "ranks", "temperature", "max-new-tokens"),
    *("serve", "quick", "no-such", "help"),
)
VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"),
    *("CCL_WORKER_COUNT", "CCL_WORKER_OFFLOAD", "CCL_WORKER_AFFINITY", "KMP_AFFINITY", "PMI_RANK", "PMI_SIZE"),
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_GTIDS"),
    *("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_RDZV_ENDPOINT", "OMPI_COMM_WORLD_RANK"),
    *("CPU_TRAIN_STACK_JOB", "CPU_TRAIN_STACK_NO_ADAPT", "CPU_TRAIN_STACK_RANKS_PER_NODE", "LD_PRELOAD"),
    *("MALLOC_CONF", "MKL_NUM_THREADS", "GLOO_SOCKET_IFNAME", "FI_TCP_IFACE", "COLUMNS"),
)
COMMANDS = [[name] for name in (*program.RANK_COMMANDS, *program.OTHER_COMMANDS, "sh", "", "--version", "\0")]
COMMANDS += [["bench", kind] for kind in ("collectives", "scaling")]
# What the worker of a rank does with its words before it needs torch.
PREPARE = {"run": script.prepare, "bench": bench.parse, "generate": generate.prepare}


class Started(BaseException):
    """In place of another program."""


def _start(*_: object, **__: object) -> NoReturn:
    raise Started


@pytest.fixture(autouse=True)
def starts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other programs, waiting for other nodes and measurements are left out."""
    for name in ("execve", "execvp"):
        monkeypatch.setattr(os, name, _start)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # a closed pipe would end the tests that come later
    monkeypatch.setattr(numa, "apply", lambda *_: None)
    monkeypatch.setattr(network, "choose", _start)
    monkeypatch.setattr(agent, "_run_agent", _start)
    monkeypatch.setattr(shutil, "which", _start)
    monkeypatch.setattr(doctor, "examine", lambda *_: [])
    monkeypatch.setattr(doctor, "_serve", _start)
    monkeypatch.setattr(watch, "watch", _start)
    monkeypatch.chdir(tmp_path)


def _run(words: list[str]) -> int:
    try:
        return program.main(words)
    except Started:
        pass
    except SystemExit as end:
        return int(end.code or 0)
    try:
        PREPARE.get(words[0], lambda _words: None)(words[1:])
    except UsageError as error:
        return report_usage_error(error)
    except SystemExit:
        return 0
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
    return 0


@pytest.mark.timeout(600)
def test_no_arguments_or_variables_end_in_a_traceback_or_take_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in fuzzing.cases(700):
        chance = random.Random(seed)
        words = fuzzing.words(chance, COMMANDS, FLAGS, VALUES)
        set_now = {chance.choice(VARIABLES): chance.choice(VALUES) for _ in range(chance.choice((0, 0, 1, 3)))}
        with fuzzing.one_case(seed, words, set_now), monkeypatch.context() as patch:
            for name, value in set_now.items():
                patch.setenv(name, value)
            code = _run(words)
            error = capsys.readouterr().err
            assert code in (0, 2, 126, 127), error
            assert code != 2 or error.count("\n") <= 1 + error.count("warning: "), error
