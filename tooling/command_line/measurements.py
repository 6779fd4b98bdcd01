"""The tasks that measure, and those that try the ccl backend long and hard."""

from __future__ import annotations

from invoke.context import Context

from tooling import bench as measurements
from tooling import bench_launch as launchers
from tooling import conformance as torchs_suite
from tooling import sanitize as sanitizing
from tooling import soak as soaking
from tooling.command_line.options import PIN_HELP, task
from tooling.say import say


@task(
    name="bench-collectives",
    help={
        "pin": PIN_HELP,
        "nodes": "containers with one rank each that are measured after the one container; 1: none",
        "ranks": "ranks in the one container",
        "sizes": "of the tensors, 4K,25M for example; default 4K to 100M, and more than all_reduce",
        "seconds": "to measure each size, about",
        "output": "folder for the JSON file and the PNG; default .cache/bench",
        "json": "one JSON document on standard output instead of a table",
    },
)
def bench_collectives(
    _c: Context,
    pin: str | None = None,
    nodes: int = 2,
    ranks: int = 2,
    sizes: str | None = None,
    seconds: float = 2.0,
    output: str | None = None,
    json: bool = False,
) -> None:
    """Measure the process group beside what limits it: ./inv bench collectives."""
    options = measurements.options_of(sizes, seconds)
    measurements.collectives(pin, nodes, ranks, options, output, json, say)


@task(
    name="bench-launch",
    help={
        "pin": PIN_HELP,
        "ranks": "training processes of launch and torchrun",
        "rounds": "how often each is measured, in turn",
        "steps": "training steps that count, each time",
        "json": "one JSON document on standard output instead of a table",
    },
)
def bench_launch(
    _c: Context, pin: str | None = None, ranks: int = 2, rounds: int = 5, steps: int = 10, json: bool = False
) -> None:
    """Train the same under launch, torchrun and run_cpu: ./inv bench launch."""
    launchers.run(pin, ranks, rounds, (f"--steps={steps}",), json, say)


@task(
    help={
        "pin": PIN_HELP,
        "ranks": "of one container",
        "only": "a regular expression that a test's name has to contain",
        "json": "one JSON document on standard output instead of tables",
    },
)
def conformance(_c: Context, pin: str | None = None, ranks: int = 3, only: str = "", json: bool = False) -> None:
    """Run torch's own suite for process groups with ccl and with gloo, and compare."""
    torchs_suite.run(pin, ranks, only, json, say)


@task(
    help={
        "pin": PIN_HELP,
        "jobs": "one after another, each on a fresh cluster",
        "nodes": "containers of each job",
        "ranks-per-node": "processes in each",
        "backend": "the process group: ccl or gloo",
    },
)
def soak(
    _c: Context,
    pin: str | None = None,
    jobs: int = 100,
    nodes: int = 2,
    ranks_per_node: int = 1,
    backend: str = "ccl",
) -> None:
    """Run many short jobs, check every result, keep the logs of those that fail."""
    soaking.run(pin, jobs, nodes, ranks_per_node, backend, say)


@task(help={"pin": PIN_HELP})
def sanitize(_c: Context, pin: str | None = None) -> None:
    """Run every collective on a ccl backend compiled with AddressSanitizer."""
    sanitizing.run(pin, say)
