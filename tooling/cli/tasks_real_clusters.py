"""The tasks for clusters of several machines, except the manifests of Kubernetes."""

from __future__ import annotations

from typing import Annotated

from tooling.basis.say import say
from tooling.cli.options import JsonOption, Task
from tooling.forecast import command as forecast
from tooling.forecast.request import Request as ForecastRequest
from tooling.hosts import launch as host_jobs
from tooling.hosts.job import Job


@Task
def plan_cluster(
    model: Annotated[str, "a name (bert-base, MiniLM, ...), a number of parameters (110M) or a config.json"] = "",
    nodes: Annotated[str, "numbers of nodes to compare"] = "1,2,4,8",
    network: Annotated[
        str, "bits per second of a node's network card (10g, 25g, 100g), optionally with the latency: 25g,40us"
    ] = "25g",
    samples: Annotated[int, "training samples in one epoch"] = 0,
    epochs: Annotated[float, "number of epochs"] = 3.0,
    seq_length: Annotated[int, "tokens in a sample"] = 128,
    batch_size: Annotated[int, "samples in a batch of one rank"] = 32,
    ranks_per_node: Annotated[int, "ranks on each node"] = 1,
    eval_samples: Annotated[int, "samples of all evaluations together"] = 0,
    single_node_samples_per_second: Annotated[
        float, "the training speed that train prints on one node; 0: estimate it from --cores, --ghz and --isa"
    ] = 0.0,
    cores: Annotated[int, "physical cores of a node"] = 0,
    ghz: Annotated[float, "clock frequency of a node with all cores busy"] = 0.0,
    isa: Annotated[str, "instructions for matrix products: avx2, avx512, avx512_bf16 or amx"] = "",
    bf16_gradients: Annotated[bool, "exchange gradients as train --ddp_comm_hook bf16 does"] = False,
    fixed_seconds: Annotated[float, "time that more nodes do not shorten: start, tokenizing, checkpoints"] = 30.0,
    efficiency: Annotated[
        float,
        "speed of each node, as a share of a single node's speed, from which a number of nodes is worth it",
    ] = 0.8,
    published: Annotated[
        bool, "instead show the predictions for jobs whose times are published in guides"
    ] = False,
    json: JsonOption = False,
) -> None:
    """Predict how long a job takes on N nodes and how many are worth it, with error bars."""
    if published:
        forecast.check(json)
        return
    request = ForecastRequest(
        model=model,
        nodes=forecast.nodes_of(nodes),
        network=network,
        samples=samples,
        epochs=epochs,
        length=seq_length,
        batch_size=batch_size,
        ranks_per_node=ranks_per_node,
        evaluated=eval_samples,
        samples_per_second=single_node_samples_per_second,
        cores=cores,
        ghz=ghz,
        isa=isa,
        bf16_gradients=bf16_gradients,
        fixed_seconds=fixed_seconds,
        efficiency=efficiency,
    )
    forecast.run(request, json, say)


@Task
def launch(
    job: Job,
    detach: Annotated[bool, "leave the job running: see ./inv logs, ./inv status, ./inv stop"] = False,
    dry_run: Annotated[bool, "print every command without running any"] = False,
) -> None:
    """Run a command on bare-metal hosts, over ssh: ./inv launch --hosts hosts -- train ..."""
    host_jobs.launch(job, detach, dry_run)
