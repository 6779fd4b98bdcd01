"""Write the Kubernetes manifest of a job."""

from __future__ import annotations

from typing import Annotated

from tooling.basis.say import say
from tooling.cli.options import Task
from tooling.kubernetes import manifest
from tooling.kubernetes.request import Options

OutputOption = Annotated[str, "the file to write; default standard output"]


@Task
def pytorchjob(options: Options, output: OutputOption = "") -> None:
    """Write a Kubernetes PyTorchJob: ./inv manifest pytorchjob ... -- train ..."""
    manifest.run("pytorchjob", options, output, say)


@Task
def trainjob(options: Options, output: OutputOption = "") -> None:
    """Write a Kubernetes TrainJob with its runtime: ./inv manifest trainjob ... -- train ..."""
    manifest.run("trainjob", options, output, say)


@Task
def mpijob(options: Options, output: OutputOption = "") -> None:
    """Write a Kubernetes MPIJob with Intel MPI: ./inv manifest mpijob ... -- train ..."""
    manifest.run("mpijob", options, output, say)
