"""A Slurm cluster of containers: a controller and two nodes, which run an exported image with charliecloud."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import containers
from tooling.image import base
from tooling.pins import parse

NODES = ("node-0", "node-1")
# The nodes are the site's machines: Debian, Slurm, and what starts images there. Nothing of this project.
DOCKERFILE = """
FROM {base}
RUN apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \\
    slurmctld slurmd slurm-client munge charliecloud && useradd --create-home --uid 1000 user
"""
# $1: the daemon of this container.
START = """
set -eu
install -d -o munge /run/munge
install -m 0400 -o munge /shared/munge.key /etc/munge/munge.key
su -s /bin/sh munge -c /usr/sbin/munged
cp /shared/slurm.conf /etc/slurm/slurm.conf
exec "/usr/sbin/$1" -D
"""
# A requeued job starts when the credential of its first start has expired: after two minutes by default.
CONFIGURATION = """
ClusterName=test
SlurmctldHost=controller
SlurmUser=root
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation=/tmp/slurmctld
SlurmdSpoolDir=/tmp/slurmd
KillWait=5
ReturnToService=2
NodeName=node-[0-1] CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@dataclass(frozen=True)
class SlurmCluster:
    """`shared` is /shared on all nodes, as a site's parallel file system."""

    controller: str
    shared: Path

    def call(self, *command: str, timeout: float = 60) -> str:
        """The output of a command on the controller, as a user who is not root. Raises CalledProcessError."""
        words = ["docker", "exec", "--user=1000", "--workdir=/shared/output", self.controller, *command]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def wait(self, job: str, states: Sequence[str]) -> str:
        """The job's state, once it is one of `states`."""
        deadline = time.monotonic() + containers.TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            shown = self.call("scontrol", "show", "job", job)
            state = shown.partition("JobState=")[2].split()[0]
            if state in states:
                return state
            assert state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), shown + self.log(job)
            time.sleep(0.5)
        raise AssertionError(f"{shown}\n{self.log(job)}")

    def log(self, job: str) -> str:
        file = self.shared / "output" / f"slurm-{job}.out"
        return file.read_text(errors="replace") if file.is_file() else ""


@contextmanager
def slurm_cluster(shared: Path) -> Iterator[SlurmCluster]:
    """The cluster, removed with all that was created. `shared`: a folder with the folder `output`."""
    tag, network = f"{containers.unique_name()}:slurm", containers.unique_name()
    names = {host: containers.unique_name() for host in ("controller", *NODES)}
    context = shared / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(DOCKERFILE.format(base=base.ensure(parse.load().pin()).reference))
    (shared / "start.sh").write_text(START)
    (shared / "slurm.conf").write_text(CONFIGURATION.format(cpus=os.cpu_count()))
    (shared / "munge.key").write_bytes(os.urandom(1024))
    try:
        docker("build", "--quiet", "--tag", tag, str(context))
        docker("network", "create", "--internal", network)
        for host, name in names.items():
            # Docker's default profile forbids the user namespaces with which charliecloud starts images.
            rights = ("--security-opt=seccomp=unconfined", "--security-opt=systempaths=unconfined", "--init")
            place = (f"--hostname={host}", f"--network={network}", f"--network-alias={host}", "--shm-size=1g")
            daemon = "slurmctld" if host == "controller" else "slurmd"
            start = ("--detach", f"--name={name}", *rights, *place, f"--volume={shared}:/shared")
            docker("run", *start, tag, "sh", "/shared/start.sh", daemon)
        cluster = SlurmCluster(names["controller"], shared)
        deadline = time.monotonic() + 60
        while "2 idle" not in (shown := _nodes(cluster)):
            assert time.monotonic() < deadline, shown
            time.sleep(0.5)
        yield cluster
    finally:
        for command in (("rm", "--force", "--volumes", *names.values()), ("network", "rm", network), ("rmi", tag)):
            subprocess.run(["docker", *command], capture_output=True, check=False, timeout=120)
        shutil.rmtree(shared / "stack", ignore_errors=True)  # the exported image: gigabytes


def docker(*arguments: str) -> None:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr


def _nodes(cluster: SlurmCluster) -> str:
    words = ["docker", "exec", cluster.controller, "sinfo", "--noheader", "--format=%D %t"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr
