"""Measure, and write JSON, tables and plots."""

from __future__ import annotations

from typing import Annotated

from tooling.basis.say import say
from tooling.bench import collectives as bench_collectives
from tooling.bench import launch as bench_launch
from tooling.bench import scaling as bench_scaling
from tooling.bench.train import run as bench_train
from tooling.cli.options import JsonOption, Task
from tooling.forecast.request import node_counts
from tooling.image.choice import PinOption

OutputOption = Annotated[str | None, "the folder for the JSON file and the PNG; default: .cache/bench"]


@Task
def collectives(
    pin: PinOption = None,
    nodes: Annotated[int, "containers of the second measurement, with one rank each; 1 skips it"] = 2,
    ranks: Annotated[int, "ranks in the single container of the first measurement"] = 2,
    sizes: Annotated[
        str | None, "tensor sizes such as 4K,25M, for all_reduce only; default: 4K to 100M, and other collectives"
    ] = None,
    seconds: Annotated[float, "approximate time to measure each size"] = 2.0,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Measure the process group next to its hardware limits."""
    options = bench_collectives.options_of(sizes, seconds)
    bench_collectives.collectives(pin, nodes, ranks, options, output, json, say)


@Task
def launch(
    pin: PinOption = None,
    ranks: Annotated[int, "ranks that launch and torchrun start"] = 2,
    rounds: Annotated[int, "number of rounds; each round measures every launcher once"] = 5,
    steps: Annotated[int, "training steps in each measurement"] = 10,
    json: JsonOption = False,
) -> None:
    """Train the same job under launch, torchrun and run_cpu."""
    bench_launch.run(pin, ranks, rounds, (f"--steps={steps}",), json, say)


@Task
def train(options: bench_train.Options) -> None:
    """Train the same job under every recipe, next to the machine's ceiling."""
    bench_train.run(options, say)


@Task
def scaling(
    backend: Annotated[tuple[str, ...], "ccl or gloo; may be repeated; default: both"] = (),
    pin: PinOption = None,
    nodes: Annotated[
        str, "numbers of containers to compare; each container gets the same share of the machine"
    ] = "1,2,4",
    seconds: Annotated[float, "approximate time to measure, without the start"] = 120.0,
    cores: Annotated[
        float | None, "cores of each container, such as 0.25; default: equal shares of the machine"
    ] = None,
    ratio: Annotated[
        float | None,
        "time of all_reduce divided by time of computing, which sets the batch size; default: the guides'",
    ] = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Train on 1, 2 and 4 containers, and compare with the prediction from 1 and 2."""
    bench_scaling.run(pin, node_counts(nodes), backend, seconds, cores or 0.0, ratio or 0.0, output, json, say)
