"""A private network on which the pods of a manifest run as containers, and the folder behind their claim."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import containers
from tests.cluster import pods
from tests.cluster.pods import Pod
from tests.image.train_runs import reviews

NAMESPACE = "ml"
REFERENCE = "registry.example/team/cpu-train-stack@sha256:" + "1" * 64


@dataclass(frozen=True)
class Cluster:
    """A private network, and the folder behind the claim."""

    image: str
    network: str
    claim: Path

    def start(self, pod: Pod) -> str:
        """Starts the pod's container. Returns its name."""
        name = containers.unique_name()
        words = pods.docker_arguments(pod, self.claim, {"hub/token": "hf_secret"})
        words = [self.image if word == REFERENCE else word for word in words]
        command = ["docker", "run", "--detach", f"--name={name}", f"--network={self.network}", *words]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return name


def fill_claim(folder: Path, tiny_model: Path) -> None:
    """A tiny model and its data. The kubelet makes the folder the group's to write to; the owner stays."""
    (folder / "train.csv").write_text(reviews(22))
    os.chown(folder, -1, 1000)
    folder.chmod(0o2775)
    shutil.copytree(tiny_model, folder / "tiny")


@contextmanager
def cluster_of(image: str, claim: Path) -> Iterator[Cluster]:
    """A network of its own, removed with all its containers."""
    network = containers.unique_name()
    subprocess.run(["docker", "network", "create", "--internal", network], check=True, capture_output=True)
    try:
        yield Cluster(image, network, claim)
    finally:
        listed = ["docker", "ps", "--all", "--quiet", f"--filter=network={network}"]
        left = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
        if left:
            subprocess.run(["docker", "rm", "--force", "--volumes", *left], check=True, capture_output=True)
        subprocess.run(["docker", "network", "rm", network], check=True, capture_output=True)


def ended(names: list[str]) -> list[int]:
    """Wait until the containers have ended, and return their exit codes."""
    waited = subprocess.run(
        ["docker", "wait", *names], check=True, capture_output=True, text=True, timeout=containers.TIMEOUT_SECONDS
    )
    return [int(code) for code in waited.stdout.split()]


def wait(names: list[str]) -> None:
    """Wait until the containers have ended, and require exit code 0 of each."""
    assert ended(names) == [0] * len(names), "\n".join(f"{name}: {log(name)}" for name in names)


def log(name: str) -> str:
    shown = subprocess.run(["docker", "logs", name], check=True, capture_output=True, text=True, timeout=60)
    return shown.stdout + shown.stderr
