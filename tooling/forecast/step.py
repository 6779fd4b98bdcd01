"""The time of a data-parallel job on N nodes, from that of one node.

A step is computing, then waiting for the slowest node, then what of the gradients' all_reduce did not fit beside
backward; a job is its steps, its evaluation, and what does not depend on the nodes. Strong scaling: the job stays,
each rank keeps its batch, so that more ranks take fewer steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from tooling.forecast.estimate import Estimate, propagate
from tooling.forecast.network import Link, all_reduce_seconds

# DistributedDataParallel's bucket_cap_mb, 25 MiB: gradients travel as soon as so many are there.
BUCKET_BYTES = 25 << 20
# A product of matrices in forward becomes two in backward, for the input's gradient and for the weights'.
FORWARD_SHARE = 1 / 3
BACKWARD_SHARE = 2 / 3
# Assumed, for machines of a cloud. The published times (tooling.forecast.published) are met within a tenth with
# anything from 0.02 to 0.045; with 0, four nodes come out 10 and 12% too fast for MRPC and QQP.
JITTER = Estimate(0.04, 0, 0.08)
_ONE = Estimate.exact(1)
_NOTHING = Estimate.exact(0)


@dataclass(frozen=True)
class Job:
    """`samples` an epoch, trained for `epochs`; `evaluated` samples in all evaluations together.

    `batch_size` is a rank's. `gradient_bytes`: what a step exchanges; `last_bytes` of them are there only when
    backward ends: the gradient of the word embeddings, DDP's last bucket. `buckets` before it; 0: of BUCKET_BYTES.
    """

    samples: int
    epochs: float
    batch_size: int
    gradient_bytes: int
    last_bytes: int
    ranks_per_node: int = 1
    evaluated: int = 0
    buckets: int = 0

    def steps(self, nodes: int) -> int:
        """Of all epochs. Each rank gets the same number of samples, the last batch may be smaller."""
        an_epoch = math.ceil(self.samples / (self.batch_size * self.ranks_per_node * nodes))
        return max(1, round(an_epoch * self.epochs))


@dataclass(frozen=True)
class Inputs:
    """What a prediction rests on.

    `samples_per_second`: one node trains alone, all of its ranks together.
    `compute_share`: of that speed what a node keeps in a cluster; below 1 where cores communicate only.
    `bytes_per_second`, `latency_seconds`: what an all_reduce gets of the link between two nodes.
    `overlap`: of the communication that could be done beside backward, how much is.
    `jitter`: standard deviation of a node's time for a step, as a share of it. All wait for the slowest.
    `fixed_seconds`: start, data, checkpoints: the same on any number of nodes.
    `cost`: factor on waiting and communication.
    `seen_on`, `seen_cost`: the nodes on which waiting and exposed communication were measured together, and their
    seconds in a step there; 0: nowhere. All else then only says how they change with the nodes.
    """

    samples_per_second: Estimate
    bytes_per_second: Estimate
    latency_seconds: Estimate
    overlap: Estimate
    compute_share: Estimate = _ONE
    jitter: Estimate = JITTER
    fixed_seconds: Estimate = _NOTHING
    cost: Estimate = _ONE
    seen_on: Estimate = _NOTHING
    seen_cost: Estimate = _NOTHING


@dataclass(frozen=True)
class Step:
    """Seconds of one step of each rank. `exposed`: of `communication`, what is not hidden behind backward."""

    computing: float
    waiting: float
    exposed: float
    communication: float

    @property
    def seconds(self) -> float:
        return self.computing + self.waiting + self.exposed


@dataclass(frozen=True)
class Prediction:
    """For `nodes`. `efficiency`: one node's time / (nodes x this time). Shares are of `seconds`."""

    nodes: int
    steps: int
    seconds: Estimate
    speedup: Estimate
    efficiency: Estimate
    communication_share: float
    waiting_share: float
    step: Step

    @property
    def node_hours(self) -> float:
        return self.seconds.value * self.nodes / 3600


def slowest(nodes: int) -> float:
    """The mean of the largest of `nodes` normal values, in standard deviations (Blom 1958, within 5% of it)."""
    return NormalDist().inv_cdf((nodes - 0.375) / (nodes + 0.25))


def exposed_seconds(job: Job, backward: float, ranks: int, link: Link) -> float:
    """What is left of the all_reduce when backward, of so many seconds, ends, if all that can overlap does.

    Buckets are ready at equal distances, the last at the end of backward, and travel one after another.
    """
    body = job.gradient_bytes - job.last_bytes
    buckets = job.buckets or math.ceil(body / BUCKET_BYTES)
    free = 0.0
    for number in range(1, buckets + 1):
        ready = backward * number / buckets
        free = max(free, ready) + all_reduce_seconds(body / buckets, ranks, link)
    return max(free, backward) + all_reduce_seconds(job.last_bytes, ranks, link) - backward


def step(job: Job, nodes: int, values: Mapping[str, float]) -> Step:
    """One step on `nodes` nodes. `values`: of Inputs."""
    one = _modelled(job, nodes, values)
    if nodes == 1 or not values["seen_on"]:
        factor = values["cost"]
    else:
        there = _modelled(job, round(values["seen_on"]), values)
        expected = there.waiting + there.exposed
        factor = values["seen_cost"] / expected if expected else 0.0
    return replace(one, waiting=factor * one.waiting, exposed=factor * one.exposed)


def _modelled(job: Job, nodes: int, values: Mapping[str, float]) -> Step:
    """As the links, jitter and overlap have it."""
    share = values["compute_share"] if nodes > 1 else 1.0
    computing = job.batch_size * job.ranks_per_node / (values["samples_per_second"] * share)
    if nodes == 1:  # communication within the node is part of its speed
        return Step(computing, 0.0, 0.0, 0.0)
    # A flat ring over all ranks: one of its edges leaves each node, so a node's link carries what one rank sends.
    ranks = nodes * job.ranks_per_node
    link = Link(values["bytes_per_second"], values["latency_seconds"])
    whole = job.buckets + 1 if job.buckets else math.ceil(job.gradient_bytes / BUCKET_BYTES)
    communication = whole * all_reduce_seconds(job.gradient_bytes / whole, ranks, link) if whole else 0.0
    least = exposed_seconds(job, computing * BACKWARD_SHARE, ranks, link)
    exposed = communication - values["overlap"] * max(0.0, communication - least)
    waiting = computing * values["jitter"] * slowest(nodes)
    return Step(computing, waiting, exposed, communication)


def seconds(job: Job, nodes: int, values: Mapping[str, float]) -> float:
    """The whole job."""
    one = step(job, nodes, values)
    of_a_sample = one.computing / (job.batch_size * job.ranks_per_node * nodes)
    evaluation = job.evaluated * of_a_sample * FORWARD_SHARE
    return values["fixed_seconds"] + job.steps(nodes) * one.seconds + evaluation


def predict(job: Job, nodes: int, inputs: Inputs) -> Prediction:
    """With the error bars of all inputs; what moves one node's time too cancels out of the efficiency's."""
    estimates = vars(inputs)
    values = {name: estimate.value for name, estimate in estimates.items()}
    one = step(job, nodes, values)
    steps = job.steps(nodes)
    total = propagate(lambda values: seconds(job, nodes, values), estimates)
    speedup = propagate(lambda values: seconds(job, 1, values) / seconds(job, nodes, values), estimates)
    return Prediction(
        nodes=nodes,
        steps=steps,
        seconds=total,
        speedup=speedup,
        efficiency=speedup.scaled(1 / nodes),
        communication_share=steps * one.exposed / total.value,
        waiting_share=steps * one.waiting / total.value,
        step=one,
    )
