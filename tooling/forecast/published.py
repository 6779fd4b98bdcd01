"""Times that guides have published for jobs on several nodes, and what has to be assumed to predict them.

Stated by the guides: times, number of nodes, ranks, batch sizes, epochs, threads; for Ice Lake the network and the
sequence length. Read from the commands: which cores are left for computing. Assumed: see each job's `assumed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tooling.forecast import models, network
from tooling.forecast.assumptions import OVERLAP, link_inputs
from tooling.forecast.estimate import Estimate
from tooling.forecast.step import Inputs, Job


@dataclass(frozen=True)
class Published:
    """One job. `times`: seconds by number of nodes. `cores`: of a node; `computing`: that compute in a cluster."""

    name: str
    model: str
    samples: int
    epochs: int
    ranks_per_node: int
    network: str
    cores: int
    computing: Estimate
    times: Mapping[int, int]
    assumed: tuple[str, ...]

    def job(self) -> Job:
        """In fp32 gradients, DDP's own."""
        model = models.find(self.model)
        return Job(
            samples=self.samples,
            epochs=self.epochs,
            batch_size=32,
            gradient_bytes=4 * model.parameters,
            last_bytes=4 * model.embeddings,
            ranks_per_node=self.ranks_per_node,
        )

    def inputs(self) -> Inputs:
        """From the time of one node and the network; the rest as for any cluster."""
        speed = Estimate.within(self.samples * self.epochs / self.times[1], 0.05)
        share = Estimate(*(cores / self.cores for cores in vars(self.computing).values()))
        return Inputs(
            samples_per_second=speed,
            overlap=OVERLAP,
            compute_share=share,
            **link_inputs(network.parse(self.network)),
        )


def _seconds(hours: int, minutes: int, seconds: int) -> int:
    return (hours * 60 + minutes) * 60 + seconds


# c6i.16xlarge: 32 cores, 25 Gbit/s as the guide says. One rank a node with 28 threads: I_MPI_PIN_DOMAIN leaves out
# the four cores that CCL_WORKER_AFFINITY names. One node alone runs without either, so torch takes all 32.
_ICE_LAKE = (
    "bert-base-cased on several nodes too: the guide's command for these names DistilBERT, which has half the "
    "work, so that 1.7x would mean 0.85x",
    "the times are those of training: what does not scale is counted as nothing",
)
# r7iz.metal-16xl: 32 cores. Two ranks a node with two worker cores each (CCL_WORKER_COUNT, auto) leave 28; the
# text speaks of 24 for computing, the command asks for 24 threads of each rank.
_SAPPHIRE_RAPIDS = (
    "25 Gbit/s: the guide does not say; it is what AWS gives for this instance",
    "28 of 32 cores compute: the text says 24, the command 24 threads for each of two ranks",
    "384 tokens and a stride of 128, run_qa.py's own: 88,524 windows of 87,599 questions",
    "the one node's 26 minutes, which the guide extrapolated from a minute's run, with 32 threads",
)
_ICE_LAKE_CORES = Estimate.exact(28)

JOBS = (
    Published(
        "MRPC, Ice Lake", "bert-base-cased", 3668, 3, 1, "25g", 32, _ICE_LAKE_CORES,
        {1: _seconds(0, 7, 46), 2: _seconds(0, 4, 39), 4: _seconds(0, 2, 36)}, _ICE_LAKE,
    ),
    Published(
        "QQP, Ice Lake", "bert-base-cased", 363_846, 3, 1, "25g", 32, _ICE_LAKE_CORES,
        {1: _seconds(11, 22, 0), 2: _seconds(6, 38, 0), 4: _seconds(3, 51, 0)}, _ICE_LAKE,
    ),
    Published(
        "SQuAD, Sapphire Rapids", "distilbert-base-uncased", 88_524, 1, 2, "25g", 32, Estimate(28, 24, 32),
        {1: _seconds(0, 26, 0), 4: _seconds(0, 7, 30)}, _SAPPHIRE_RAPIDS,
    ),
)  # fmt: skip
