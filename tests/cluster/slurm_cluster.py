"""A Slurm cluster of containers: a controller and three nodes, which run an exported image with charliecloud."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import containers
from tooling.image import base
from tooling.pins.pin import Pin

CONTROLLER = "controller"
NODES = ("node-0", "node-1", "node-2")
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
until [ -f /shared/slurm.conf ]; do sleep 0.1; done
cp /shared/slurm.conf /etc/slurm/slurm.conf
exec "/usr/sbin/$1" -D
"""
# Shorter than by default: a requeued job starts when the credential of its first start has expired (120 s), and a
# node is down when it has not answered for SlurmdTimeout (300 s). It is long enough for nodes that are only busy.
CONFIGURATION = """
ClusterName=test
SlurmctldHost=controller({controller})
SlurmUser=root
AuthInfo=cred_expire=5
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdTimeout=20
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation=/tmp/slurmctld
SlurmdSpoolDir=/tmp/slurmd
KillWait=5
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


# Of a job that has not ended.
ACTIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")


@dataclass(frozen=True)
class SlurmCluster:
    """`shared` is /shared on all nodes, as a site's parallel file system. `names`: the containers, by host."""

    names: Mapping[str, str]
    shared: Path

    def call(self, *command: str, user: str = "1000") -> str:
        """The output of a command on the controller, by default as a user who is not root."""
        place = (f"--user={user}", "--workdir=/shared/output", self.names[CONTROLLER])
        return docker("exec", *place, *command)

    def show(self, job: str, field: str) -> str:
        """A field of `scontrol show job`."""
        shown = self.call("scontrol", "show", "job", job)
        found = re.search(rf"(?<=\s){field}=(\S*)", shown)
        assert found, shown
        return found[1]

    def wait(self, job: str, reached: Callable[[], bool]) -> None:
        """Waits until the condition is met. Fails if the job ends before."""
        deadline = time.monotonic() + containers.TIMEOUT_SECONDS
        while True:
            state = self.show(job, "JobState")
            if reached():
                return
            assert state in ACTIVE, f"{state}\n{self.log(job)}"
            assert time.monotonic() < deadline, f"{state}\n{self.log(job)}"
            time.sleep(0.5)

    def wait_until_idle(self) -> None:
        """Waits until all nodes answer, and none of them runs or ends a job."""
        words = ["docker", "exec", self.names[CONTROLLER], "sinfo", "--noheader", "--format=%D %t"]
        deadline = time.monotonic() + containers.TIMEOUT_SECONDS
        while True:
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
            if done.stdout.split() == [str(len(NODES)), "idle"]:
                return
            assert time.monotonic() < deadline, done.stdout + done.stderr + self.daemons()
            time.sleep(0.5)

    def daemons(self) -> str:
        """What the daemons have printed last."""
        return "\n".join(
            subprocess.run(
                ["docker", "logs", "--timestamps", "--tail=8", name],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=60,
            ).stdout
            for name in self.names.values()
        )

    def log(self, job: str) -> str:
        file = self.shared / "output" / f"slurm-{job}.out"
        return file.read_text(errors="replace") if file.is_file() else ""


@contextmanager
def slurm_cluster(debian: Pin, shared: Path) -> Iterator[SlurmCluster]:
    """The cluster, removed with all that was created.

    `debian`: a row whose Debian the nodes run. `shared`: a folder with the folder `output`.
    """
    tag, network = f"{containers.unique_name()}:slurm", containers.unique_name()
    names = {host: containers.unique_name() for host in (CONTROLLER, *NODES)}
    context = shared / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(DOCKERFILE.format(base=base.ensure(debian).reference))
    (shared / "start.sh").write_text(START)
    (shared / "munge.key").write_bytes(os.urandom(1024))
    try:
        docker("build", "--quiet", "--tag", tag, str(context))
        docker("network", "create", "--internal", network)
        for host, name in names.items():
            # Docker's default profile forbids the user namespaces with which charliecloud starts images.
            rights = ("--security-opt=seccomp=unconfined", "--security-opt=systempaths=unconfined", "--init")
            place = (f"--hostname={host}", f"--network={network}", f"--network-alias={host}", "--shm-size=1g")
            daemon = "slurmctld" if host == CONTROLLER else "slurmd"
            start = ("--detach", f"--name={name}", *rights, *place, f"--volume={shared}:/shared")
            docker("run", *start, tag, "sh", "/shared/start.sh", daemon)
        (shared / "slurm.conf.new").write_text(_configuration(names))
        (shared / "slurm.conf.new").rename(shared / "slurm.conf")
        cluster = SlurmCluster(names, shared)
        cluster.wait_until_idle()
        yield cluster
    finally:
        for command in (("rm", "--force", "--volumes", *names.values()), ("network", "rm", network), ("rmi", tag)):
            subprocess.run(["docker", *command], capture_output=True, check=False, timeout=120)


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _configuration(names: Mapping[str, str]) -> str:
    """slurm.conf with the hosts' addresses: slurmctld must not look up the name of a node that has died."""
    form = "--format={{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    at = {host: docker("inspect", form, name).strip() for host, name in names.items()}
    nodes = [f"NodeName={node} NodeAddr={at[node]} CPUs={os.cpu_count()} State=UNKNOWN" for node in NODES]
    return CONFIGURATION.format(controller=at[CONTROLLER], nodes="\n".join(nodes))
