"""The tasks that measure, and those that stress-test the ccl backend."""

from __future__ import annotations

from invoke.context import Context

from tooling.basis.say import say
from tooling.bench import collectives as measurements
from tooling.bench import launch as launchers
from tooling.bench import scaling
from tooling.bench.train import run as training
from tooling.checks import conformance as torchs_suite
from tooling.checks import sanitize as sanitizing
from tooling.checks import soak as soaking
from tooling.cli.options import PIN_HELP, task
from tooling.forecast import command as cluster_planning
from tooling.forecast.request import Request as PlanRequest
from tooling.forecast.request import node_counts


@task(
    name="bench-collectives",
    help={
        "pin": PIN_HELP,
        "nodes": "containers with one rank each, measured after the single container; 1: none",
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
    """Measure the process group next to its hardware limits: ./inv bench collectives."""
    options = measurements.options_of(sizes, seconds)
    measurements.collectives(pin, nodes, ranks, options, output, json, say)


@task(
    name="bench-launch",
    help={
        "pin": PIN_HELP,
        "ranks": "training processes of launch and torchrun",
        "rounds": "how often each is measured, in turn",
        "steps": "training steps that are measured, each time",
        "json": "one JSON document on standard output instead of a table",
    },
)
def bench_launch(
    _c: Context, pin: str | None = None, ranks: int = 2, rounds: int = 5, steps: int = 10, json: bool = False
) -> None:
    """Train the same job under launch, torchrun and run_cpu: ./inv bench launch."""
    launchers.run(pin, ranks, rounds, (f"--steps={steps}",), json, say)


@task(
    name="bench-train",
    help={
        "pin": PIN_HELP,
        "job": "distilbert-qa, bert-classification, minilm-mrpc, tiny, with commas; default all but tiny",
        "recipe": "guide-fp32, guide-bf16, run_cpu, accelerate, ipex-2.8, ours, with commas; default all",
        "ranks": "of one container, with commas: each number is measured",
        "cpus": "that the containers may use, as docker's --cpuset-cpus; default all",
        "seconds": "of the measured steps of each run, about",
        "steps": "that are measured in each run; 0: as many as fit in --seconds",
        "repeats": "how often each is measured, in turn",
        "json": "one JSON document on standard output instead of tables",
    },
)
def bench_train(
    _c: Context,
    pin: str | None = None,
    job: str | None = None,
    recipe: str | None = None,
    ranks: str = "1,2",
    cpus: str | None = None,
    seconds: float = 15.0,
    steps: int = 0,
    repeats: int = 3,
    json: bool = False,
) -> None:
    """Train the same job under every recipe, next to the machine's ceiling: ./inv bench train."""
    training.run(training.Options(pin, job, recipe, ranks, cpus, seconds, steps, repeats, json), say)


@task(
    name="bench-scaling",
    iterable=["backend"],
    help={
        "pin": PIN_HELP,
        "nodes": "numbers of containers, each with the same part of the machine",
        "backend": "ccl or gloo; may be repeated; default both",
        "seconds": "to measure, about, not counting the start",
        "cores": "of each container, 0.25 for example; default equal parts of the machine",
        "ratio": "of all_reduce to computing, by which the batch is chosen; default the guides'",
        "output": "folder for the JSON file and the PNG; default .cache/bench",
        "json": "one JSON document on standard output instead of a table",
    },
)
def bench_scaling(
    _c: Context,
    backend: list[str],
    pin: str | None = None,
    nodes: str = "1,2,4",
    seconds: float = 120.0,
    cores: float = 0.0,
    ratio: float = 0.0,
    output: str | None = None,
    json: bool = False,
) -> None:
    """Train on 1, 2 and 4 containers, and compare with what 1 and 2 predict: ./inv bench scaling."""
    scaling.run(pin, node_counts(nodes), backend, seconds, cores, ratio, output, json, say)


@task(
    help={
        "model": "a name (bert-base, MiniLM, ...), a number of parameters (110M) or a config.json",
        "nodes": "numbers of nodes to compare",
        "network": "bits a second of a node's network card: 10g, 25g, 100g; with a message's time: 25g,40us",
        "samples": "to train on, in an epoch",
        "epochs": "how often",
        "seq-length": "tokens of a sample",
        "batch-size": "of a rank",
        "ranks-per-node": "training processes on each node",
        "eval-samples": "of all evaluations together",
        "single-node-samples-per-second": "as printed by train on one node",
        "cores": "of a node, physical ones",
        "ghz": "of all cores at work",
        "isa": "avx2, avx512, avx512_bf16 or amx: the instructions for matrix products",
        "bf16-gradients": "as train --ddp_comm_hook bf16 exchanges them",
        "fixed-seconds": "for the parts that more nodes do not shorten: start, tokenizing, checkpoints",
        "efficiency": "of one node, that each node must reach to be worth it",
        "published": "show instead the predictions for the jobs whose times the guides published",
        "json": "one JSON document on standard output instead of a table",
    },
)
def plan_cluster(
    _c: Context,
    model: str = "",
    nodes: str = "1,2,4,8",
    network: str = "25g",
    samples: int = 0,
    epochs: float = 3.0,
    seq_length: int = 128,
    batch_size: int = 32,
    ranks_per_node: int = 1,
    eval_samples: int = 0,
    single_node_samples_per_second: float = 0.0,
    cores: int = 0,
    ghz: float = 0.0,
    isa: str = "",
    bf16_gradients: bool = False,
    fixed_seconds: float = 30.0,
    efficiency: float = 0.8,
    published: bool = False,
    json: bool = False,
) -> None:
    """Predict how long a job takes on N nodes and how many are worth it, with error bars."""
    if published:
        cluster_planning.run_published(json)
        return
    request = PlanRequest(
        model=model,
        nodes=nodes,
        network=network,
        samples=samples,
        epochs=epochs,
        seq_length=seq_length,
        batch_size=batch_size,
        ranks_per_node=ranks_per_node,
        eval_samples=eval_samples,
        single_node_samples_per_second=single_node_samples_per_second,
        cores=cores,
        ghz=ghz,
        isa=isa,
        bf16_gradients=bf16_gradients,
        fixed_seconds=fixed_seconds,
        efficiency=efficiency,
    )
    cluster_planning.run(request, json, say)


@task(
    help={
        "pin": PIN_HELP,
        "ranks": "of one container",
        "only": "a regular expression for the names of the tests",
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
        "launcher": "what starts the ranks: torchrun or mpirun",
    },
)
def soak(
    _c: Context,
    pin: str | None = None,
    jobs: int = 100,
    nodes: int = 2,
    ranks_per_node: int = 1,
    backend: str = "ccl",
    launcher: str = "torchrun",
) -> None:
    """Run many short jobs, check every result and leftover, keep the logs of failed jobs."""
    soaking.run(pin, jobs, soaking.Shape(nodes, ranks_per_node, backend, launcher), say)


@task(help={"pin": PIN_HELP, "thread": "use ThreadSanitizer instead of AddressSanitizer"})
def sanitize(_c: Context, pin: str | None = None, thread: bool = False) -> None:
    """Run every collective on a ccl backend compiled with AddressSanitizer or ThreadSanitizer."""
    sanitizing.run(pin, thread, say)
