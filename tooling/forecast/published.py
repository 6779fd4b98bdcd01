"""Times that guides have published for jobs on several nodes, and the assumptions for predicting them.

The guides state the times, the numbers of nodes and ranks, batch sizes, epochs and threads, and for Ice Lake also
the network and the sequence length. Their commands show which cores compute. `assumed` lists the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tooling.forecast import models
from tooling.forecast.estimate import Estimate
from tooling.forecast.inputs import OVERLAP, link_inputs, parse_network
from tooling.forecast.step import Inputs, Job


@dataclass(frozen=True)
class Published:
    """One job. `times`: seconds by number of nodes. `cores`: of a node. `computing`: those for ranks."""

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
        """The job, with gradients in fp32."""
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
        """The speed from the time on one node, the link from the network, and defaults for the rest."""
        speed = Estimate.within(self.samples * self.epochs / self.times[1], 0.05)
        share = Estimate(*(cores / self.cores for cores in vars(self.computing).values()))
        return Inputs(
            samples_per_second=speed,
            overlap=OVERLAP,
            compute_share=share,
            **link_inputs(parse_network(self.network)),
        )


def _seconds(hours: int, minutes: int, seconds: int) -> int:
    return (hours * 60 + minutes) * 60 + seconds


# c6i.16xlarge: 32 cores and 25 Gbit/s, according to the guide. One rank per node with 28 threads: I_MPI_PIN_DOMAIN
# excludes the four cores that CCL_WORKER_AFFINITY names. A single node runs without both, and torch uses all 32.
_ICE_LAKE = (
    "bert-base-cased on several nodes too: the guide's command for several nodes names DistilBERT, which has half "
    "the work, so that 1.7x would mean 0.85x",
    "the times are those of training: no time is counted for parts that do not scale",
)
# r7iz.metal-16xl: 32 cores. Two ranks per node with two worker cores each (CCL_WORKER_COUNT, auto) leave 28 cores.
# The text mentions 24 cores for computing, the command sets 24 threads for each rank.
_SAPPHIRE_RAPIDS = (
    "25 Gbit/s: AWS states it for this instance, the guide does not state it",
    "28 of 32 cores compute: the text mentions 24, the command sets 24 threads for each of two ranks",
    "384 tokens and a stride of 128, the defaults of run_qa.py: 88,524 windows of 87,599 questions",
    "26 minutes on one node with 32 threads: the guide extrapolated them from a run of one minute",
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
