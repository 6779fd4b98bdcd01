"""The model: the time of a data-parallel job on N nodes, predicted from its time on one node.

A step computes, waits for the slowest node, and then waits for the part of the gradients' all_reduce that did not
overlap with backward. A job is its steps, and a part that does not depend on the number of nodes.
Strong scaling: the batch of each rank stays the same, so that more ranks take fewer steps.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from tooling.bench.forecast.estimate import Estimate, propagate
from tooling.bench.forecast.inputs import Link, all_reduce_seconds

# DistributedDataParallel's bucket_cap_mb, 25 MiB: the exchange of a bucket starts as soon as it is full.
BUCKET_BYTES = 25 << 20
# A matrix product in forward becomes two in backward: for the gradients of the input and of the weights.
BACKWARD_SHARE = 2 / 3
# Assumed, for machines of a cloud. With values from 0.02 to 0.045, predictions are within a tenth of published
# times (tests/unit/tooling/bench/forecast/test_published.py). With 0, predictions for four nodes are 10 and 12%
# too fast for MRPC and QQP.
JITTER = Estimate(0.04, 0, 0.08)
_ONE = Estimate.exact(1)
_NOTHING = Estimate.exact(0)
# Half of the width of the middle nine tenths of a normal distribution, in standard deviations.
NINE_TENTHS = 1.645
# The inputs on which waiting and communication depend: a measurement on several nodes corrects them together.
_CORRECTED = ("bytes_per_second", "latency_seconds", "overlap", "jitter", "cost")
_MEASURED = ("seen_on", "seen_cost")


@dataclass(frozen=True)
class ForecastJob:
    """A training job with data parallelism."""

    samples: int  # in one epoch
    epochs: float
    batch_size: int  # of one rank
    gradient_bytes: int  # exchanged in a step
    last_bytes: int  # of gradient_bytes, ready only at the end of backward: the word embeddings, DDP's last bucket
    ranks_per_node: int = 1
    buckets: int = 0  # before the last bucket; 0: buckets of BUCKET_BYTES

    def steps(self, nodes: int) -> int:
        """The steps of all epochs. Each rank gets the same number of samples. The last batch may be smaller."""
        per_epoch = math.ceil(self.samples / (self.batch_size * self.ranks_per_node * nodes))
        return max(1, round(per_epoch * self.epochs))


@dataclass(frozen=True)
class Inputs:
    """The inputs of a prediction.

    After a measurement on several nodes (`seen_on`, `seen_cost`), the other inputs only extrapolate from it.
    """

    samples_per_second: Estimate  # of one node that trains alone, with all of its ranks
    bytes_per_second: Estimate  # of the link between two nodes, as an all_reduce gets it
    latency_seconds: Estimate  # of this link
    overlap: Estimate  # the share of the communication that can overlap with backward and does
    compute_share: Estimate = _ONE  # of samples_per_second, in a cluster: below 1 if cores are reserved for ccl
    jitter: Estimate = JITTER  # the standard deviation of a node's time for a step, as a share of this time
    fixed_seconds: Estimate = _NOTHING  # start, data and checkpoints: the same on any number of nodes
    cost: Estimate = _ONE  # a factor on waiting and communication
    seen_on: Estimate = _NOTHING  # the number of nodes of the measurement; 0: no measurement
    seen_cost: Estimate = _NOTHING  # the measured seconds of waiting and exposed communication in a step


@dataclass(frozen=True)
class Step:
    """The seconds of one step. `exposed`: the part of `communication` that does not overlap with backward."""

    computing: float
    waiting: float
    exposed: float
    communication: float

    @property
    def seconds(self) -> float:
        return self.computing + self.waiting + self.exposed


@dataclass(frozen=True)
class Prediction:
    """A job on `nodes` nodes. `samples_per_second`: of all ranks, while they train.

    `efficiency`: one node's time / (nodes x this time). The shares are of `seconds`.
    """

    nodes: int
    steps: int
    seconds: Estimate
    samples_per_second: Estimate
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


def exposed_seconds(job: ForecastJob, backward: float, ranks: int, link: Link) -> float:
    """The time from the end of backward, which takes `backward` seconds, to the end of the all_reduce.

    All communication that can overlap does. Buckets become ready at equal intervals, the last one at the end of
    backward, and are exchanged one after another.
    """
    body = job.gradient_bytes - job.last_bytes
    buckets = job.buckets or math.ceil(body / BUCKET_BYTES)
    free = 0.0
    for number in range(1, buckets + 1):
        ready = backward * number / buckets
        free = max(free, ready) + all_reduce_seconds(body / buckets, ranks, link)
    return max(free, backward) + all_reduce_seconds(job.last_bytes, ranks, link) - backward


def step(job: ForecastJob, nodes: int, values: Mapping[str, float]) -> Step:
    """One step on `nodes` nodes. `values` maps the names of Inputs to numbers."""
    one = _modelled(job, nodes, values)
    if nodes == 1 or not values["seen_on"]:
        factor = values["cost"]
    else:
        there = _modelled(job, round(values["seen_on"]), values)
        expected = there.waiting + there.exposed
        factor = values["seen_cost"] / expected if expected else 0.0
    return replace(one, waiting=factor * one.waiting, exposed=factor * one.exposed)


def _modelled(job: ForecastJob, nodes: int, values: Mapping[str, float]) -> Step:
    """One step without a measurement and without `cost`."""
    share = values["compute_share"] if nodes > 1 else 1.0
    computing = job.batch_size * job.ranks_per_node / (values["samples_per_second"] * share)
    if nodes == 1:  # communication within the node is part of its speed
        return Step(computing, 0.0, 0.0, 0.0)
    # In a flat ring over all ranks, one edge leaves each node: a node's link carries the bytes that one rank
    # sends.
    ranks = nodes * job.ranks_per_node
    link = Link(values["bytes_per_second"], values["latency_seconds"])
    buckets = job.buckets + 1 if job.buckets else math.ceil(job.gradient_bytes / BUCKET_BYTES)
    communication = buckets * all_reduce_seconds(job.gradient_bytes / buckets, ranks, link) if buckets else 0.0
    least = exposed_seconds(job, computing * BACKWARD_SHARE, ranks, link)
    exposed = communication - values["overlap"] * max(0.0, communication - least)
    waiting = computing * values["jitter"] * slowest(nodes)
    return Step(computing, waiting, exposed, communication)


def seconds(job: ForecastJob, nodes: int, values: Mapping[str, float]) -> float:
    """The time of the job."""
    return values["fixed_seconds"] + job.steps(nodes) * step(job, nodes, values).seconds


def predict(job: ForecastJob, nodes: int, inputs: Inputs) -> Prediction:
    """Predict a job, with the error bars of all inputs. Errors of the node's speed cancel in the efficiency."""
    estimates = vars(inputs)
    values = {name: estimate.value for name, estimate in estimates.items()}
    one = step(job, nodes, values)
    steps = job.steps(nodes)
    total = propagate(lambda values: seconds(job, nodes, values), estimates)
    batch = job.batch_size * job.ranks_per_node * nodes
    speed = propagate(lambda values: batch / step(job, nodes, values).seconds, estimates)
    speedup = propagate(lambda values: seconds(job, 1, values) / seconds(job, nodes, values), estimates)
    return Prediction(
        nodes=nodes,
        steps=steps,
        seconds=total,
        samples_per_second=speed,
        speedup=speedup,
        efficiency=speedup.scaled(1 / nodes),
        communication_share=steps * one.exposed / total.value,
        waiting_share=steps * one.waiting / total.value,
        step=one,
    )


def fit(job: ForecastJob, nodes: int, measured: Estimate, inputs: Inputs) -> Inputs:
    """`inputs`, corrected by `measured`: the seconds of the job on `nodes`, which show waiting and communication.

    Measurement and expectation are weighted by their error bars, as two normal distributions that are multiplied.
    The cost is at least 0: if noise makes several nodes faster than computing alone allows, the excess is ignored.
    """
    estimates = vars(inputs)
    values = {name: estimate.value for name, estimate in estimates.items()} | {"seen_on": 0.0}
    without = seconds(job, nodes, {**values, "cost": 0.0})
    unit = seconds(job, nodes, {**values, "cost": 1.0}) - without
    if unit <= 0:
        return inputs
    costs = {name: estimates[name] for name in _CORRECTED}
    others = {name: estimate for name, estimate in estimates.items() if name not in (*_CORRECTED, *_MEASURED)}
    expected = propagate(lambda some: (seconds(job, nodes, {**values, **some}) - without) / unit, costs)
    computing = propagate(lambda some: seconds(job, nodes, {**values, **some, "cost": 0.0}), others)
    seen = (measured.value - without) / unit
    seen_deviation = math.hypot(_deviation(measured), _deviation(computing)) / unit
    variances = _deviation(expected) ** 2 + seen_deviation**2
    weight = _deviation(expected) ** 2 / variances if variances else 1.0
    cost = max(0.0, expected.value + weight * (seen - expected.value))
    half = NINE_TENTHS * math.sqrt(weight) * seen_deviation
    per_step = unit / job.steps(nodes)
    seen_cost = Estimate(cost, max(0.0, cost - half), cost + half).scaled(per_step)
    return replace(inputs, seen_on=Estimate.exact(nodes), seen_cost=seen_cost)


def _deviation(estimate: Estimate) -> float:
    """The standard deviation of an estimate."""
    return (estimate.high - estimate.low) / 2 / NINE_TENTHS
