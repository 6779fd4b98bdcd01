"""The recipes: the command with which each starts the same script, and its image. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks import jobs
from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from tooling.bench.runner import FOLDER

SCRIPT = f"{FOLDER}/benchmarks/finetune.py"
# One line, localhost: accelerate passes the file to mpirun.
HOSTS = f"{FOLDER}/benchmarks/hosts"
LAUNCH = ("launch", "--nproc-per-node")
RUN = ("--", "run", "--quiet", "--adapt", "no-padding-answers")
# The recipes with which the others are compared.
FP32, BF16, TRL = "guide-fp32", "guide-bf16", "trl"
BASELINES = (FP32, BF16, TRL)
# torchrun's own ranks, without this project's plan and process group.
PLAIN = {contract.TORCHRUN: "plain"}
OURS = "ours"
# The row of the matrix with the last IPEX.
IPEX_PIN = "2.8"
TRL_PACKAGE = "trl==1.16.0"


@dataclass(frozen=True)
class Recipe:
    """`start` returns the arguments before the script for a number of ranks, or the reason why there are none.

    `flags`: arguments of the script, in addition to the job's. `pin`: the row of the image, or "" for the measured
    row. `variables`: those of the container. `packages`: what the image has in addition to the row, as in
    `--with`. `task`: the only task that it trains, or "" for all. `bind`: arguments before the script for the CPUs
    of `--cpus`, of a recipe that would use all CPUs.
    """

    name: str
    start: Callable[[int], tuple[str, ...] | str]
    flags: tuple[str, ...] = ("--bf16",)
    pin: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    task: str = ""
    bind: Callable[[Sequence[int]], tuple[str, ...]] | None = None

    def command(self, ranks: int, job: Sequence[str], cpus: Sequence[int] = ()) -> tuple[str, ...] | str:
        """The command of the container, or the reason why there is none. `cpus`: those of --cpus, if any."""
        start = self.start(ranks)
        if isinstance(start, str):
            return start
        bound = self.bind(cpus) if self.bind and cpus else ()
        return (*start, *bound, SCRIPT, *job, "--use_cpu", *self.flags)


def _torchrun(ranks: int) -> tuple[str, ...]:
    return ("torchrun", "--nproc-per-node", str(ranks))


def _run_cpu(ranks: int) -> tuple[str, ...] | str:
    if ranks > 1:
        return "run_cpu creates no process group: its instances would train independently"
    return ("python", "-m", "torch.backends.xeon.run_cpu")


def _bind_run_cpu(cpus: Sequence[int]) -> tuple[str, ...]:
    """run_cpu calls taskset with all cores of the machine, whatever its own affinity is."""
    return ("--ncores-per-instance", str(len(cpus)), "--core-list", ",".join(map(str, cpus)))


def _accelerate(ranks: int) -> tuple[str, ...]:
    words = ("accelerate", "launch", "--cpu", "--num_machines", "1", "--num_processes", str(ranks))
    # Without a hostfile, accelerate starts one process for any number.
    hosts = ("--mpirun_hostfile", HOSTS) if ranks > 1 else ()
    return (*words, "--mixed_precision", "bf16", *hosts)


def _launch(ranks: int) -> tuple[str, ...]:
    return (*LAUNCH, str(ranks), *RUN)


ALL = (
    Recipe(FP32, _torchrun, flags=(), variables=PLAIN),
    Recipe(BF16, _torchrun, variables=PLAIN),
    # TRL's defaults include bf16 and gradient checkpointing.
    Recipe(TRL, _torchrun, ("--trl",), variables=PLAIN, packages=(TRL_PACKAGE,), task=jobs.LANGUAGE),
    Recipe("run_cpu", _run_cpu, bind=_bind_run_cpu),
    Recipe("accelerate", _accelerate),
    # IPEX alone: the image of its row also has the kernels of this project.
    Recipe("ipex-2.8", _launch, ("--bf16", "--ipex"), IPEX_PIN, {contract.KERNELS: "torch"}),
    Recipe(OURS, _launch),
    Recipe("ours-fp32", _launch, flags=()),
)
BY_NAME = {recipe.name: recipe for recipe in ALL}


def chosen(names: str | None, known: Sequence[str], default: Sequence[str], option: str) -> tuple[str, ...]:
    """The names in a comma-separated list, in the order of `known`. Raises UsageError."""
    wanted = [name.strip() for name in names.split(",")] if names is not None else list(default)
    for name in wanted:
        if name not in known:
            raise UsageError(f"bench: {option} {name!r}, expected one or more of {', '.join(known)}")
    return tuple(name for name in known if name in wanted)
