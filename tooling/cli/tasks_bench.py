"""Run benchmarks."""

from tooling.bench import attention as bench_attention
from tooling.bench import collectives as bench_collectives
from tooling.bench import launch as bench_launch
from tooling.bench import scaling as bench_scaling
from tooling.bench.train import run as bench_train
from tooling.cli.options import task


@task
def train(options: bench_train.TrainOptions) -> None:
    """Train the same job under every recipe, and compare with the machine's limit."""
    bench_train.run(options)


@task
def collectives(options: bench_collectives.CollectivesOptions) -> None:
    """Measure the process groups, and compare with the hardware's limits."""
    bench_collectives.run(options)


@task
def scaling(options: bench_scaling.ScalingOptions) -> None:
    """Train on 1, 2 and 4 containers, and compare with the prediction from 1 and 2."""
    bench_scaling.run(options)


@task
def launch(options: bench_launch.StartOptions) -> None:
    """Train the same job under launch, torchrun and run_cpu."""
    bench_launch.run(options)


@task
def attention(options: bench_attention.AttentionOptions) -> None:
    """Measure attention with this project's kernels and with torch's."""
    bench_attention.run(options)
