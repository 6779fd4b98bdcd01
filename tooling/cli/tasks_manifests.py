"""Write a Kubernetes manifest, or a batch script for Slurm."""

from typing import Annotated

from tooling.cli.options import task
from tooling.hpc.slurm import SlurmJob
from tooling.kubernetes import manifest
from tooling.kubernetes.operators import MPIJob, PyTorchJob
from tooling.kubernetes.trainer import Runtime, TrainJob

OutputOption = Annotated[str, "the file to write; default: standard output"]


@task
def trainjob(job: TrainJob, output: OutputOption = "") -> None:
    """Write a Kubernetes TrainJob with its runtime: ./inv manifest trainjob ... -- train ..."""
    manifest.write(job, output)


@task
def mpijob(job: MPIJob, output: OutputOption = "") -> None:
    """Write a Kubernetes MPIJob with Intel MPI: ./inv manifest mpijob ... -- train ..."""
    manifest.write(job, output)


@task
def pytorchjob(job: PyTorchJob, output: OutputOption = "") -> None:
    """Write a Kubernetes PyTorchJob: ./inv manifest pytorchjob ... -- train ..."""
    manifest.write(job, output)


@task
def runtime(runtime: Runtime, output: OutputOption = "") -> None:
    """Write a TrainingRuntime for Kubeflow's SDK, which starts a Python function in its pods."""
    manifest.write(runtime, output)


@task
def slurm(job: SlurmJob) -> None:
    """Write a batch script for Slurm that runs an image of ./inv export: ./inv manifest slurm ... -- train ..."""
    print(job.script(), end="")
