"""A Slurm cluster of containers: a controller and three nodes, which run exported images without root."""

import os
import re
import shutil
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
# Only sid has Apptainer. If sid cannot be used, only the test of Apptainer fails. A mirror's copy of sid may be
# older than its release file permits.
DOCKERFILE = """
FROM {base}
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update -q && apt-get install -q -y --no-install-recommends \\
    slurmctld slurmd slurm-client munge charliecloud squashfuse && useradd --create-home --uid 1000 user
RUN . /etc/os-release && site=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \\
    "Codename: $VERSION_CODENAME" | head -n 1) && \\
    echo "deb [check-valid-until=no] $site sid main" >/etc/apt/sources.list.d/sid.list && apt-get update -q && \\
    apt-get install -q -y --no-install-recommends --target-release $VERSION_CODENAME apptainer/sid || true
"""
# No Debian has enroot. It is compiled with glibc, without the sources that it has as submodules.
ENROOT = """
RUN apt-get install -q -y --no-install-recommends \\
    curl docker-cli fuse-overlayfs gcc git jq libc6-dev make parallel squashfs-tools
COPY enroot /enroot
RUN cd /enroot/deps && mkdir -p dist/makeself/bin && \\
    touch makeself/.stamp linux-headers/.stamp dist/makeself/bin/enroot-makeself && \\
    make FORCE_GLIBC=1 && make -C .. FORCE_GLIBC=1 install && \\
    echo 'ENROOT_RUNTIME_PATH /tmp/enroot-$(id -u)' >>/usr/local/etc/enroot/enroot.conf
"""
# What the machine that exports runs as apptainer and enroot. Files are not compressed, which saves a minute.
PROGRAM = """\
#!/bin/sh
exec docker run --rm --name={name} --volume=/var/run/docker.sock:/var/run/docker.sock --volume={shared}:{shared} \\
    --env=APPTAINER_TMPDIR={shared} --env='APPTAINER_MKSQUASHFS_ARGS=-noD -noI -noF -noX' --env=HOME={shared} \\
    --env=ENROOT_TEMP_PATH={shared} --env='ENROOT_SQUASH_OPTIONS=-noD -noI -noF -noX' {tag} "${{0##*/}}" "$@"
"""
FUSE = Path("/dev/fuse")
# $1: the daemon of this container.
START = """
set -eu
install -d -o munge /run/munge
install -m 0400 -o munge /shared/munge.key /etc/munge/munge.key
su -s /bin/sh munge -c /usr/sbin/munged
until [ -f /shared/slurm.conf ]; do sleep 0.1; done
cp /shared/slurm.conf /etc/slurm/slurm.conf
if [ -e /dev/fuse ]; then chmod 666 /dev/fuse; fi
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
    """`shared` is /shared on all nodes, as a site's parallel file system. `names`: the containers, by host.

    `programs`: a folder with the programs apptainer and enroot for this machine.
    """

    names: Mapping[str, str]
    shared: Path
    programs: Path

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

    def wait_for_nodes(self, *states: str) -> None:
        """Waits until all nodes answer and are in one of these states of sinfo, by default idle."""
        words = ["docker", "exec", self.names[CONTROLLER], "sinfo", "--noheader", "--Node", "--format=%t"]
        deadline = time.monotonic() + containers.TIMEOUT_SECONDS
        while True:
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
            found = done.stdout.split()
            if len(found) == len(NODES) and {*found} <= {*(states or ("idle",))}:
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
def slurm_cluster(debian: Pin, shared: Path, enroot: Path | None) -> Iterator[SlurmCluster]:
    """The cluster, removed with all that was created.

    `debian`: a row whose Debian the nodes run. `shared`: a folder with the folder `output`. `enroot`: a
    git checkout of it, to be installed on the nodes.
    """
    tag, network = f"{containers.unique_name()}:slurm", containers.unique_name()
    names = {host: containers.unique_name() for host in (CONTROLLER, *NODES)}
    exporter = containers.unique_name()
    context, programs = shared / "context", shared / "programs"
    context.mkdir()
    programs.mkdir()
    for program in ("apptainer", "enroot"):
        (programs / program).write_text(PROGRAM.format(name=exporter, shared=shared, tag=tag))
        (programs / program).chmod(0o755)
    dockerfile = DOCKERFILE.format(base=base.ensure(debian).reference)
    if enroot:
        archive = context / "enroot.tar"
        archived = ["git", "-C", str(enroot), "archive", f"--output={archive}", "HEAD"]
        subprocess.run(archived, check=True, timeout=60)
        shutil.unpack_archive(archive, context / "enroot")
        archive.unlink()
        dockerfile += ENROOT
    (context / "Dockerfile").write_text(dockerfile)
    (shared / "start.sh").write_text(START)
    (shared / "munge.key").write_bytes(os.urandom(1024))
    try:
        docker("build", "--quiet", "--tag", tag, str(context))
        docker("network", "create", "--internal", network)
        for host, name in names.items():
            # Docker's default profile forbids the user namespaces with which images start here.
            open_profile = ("--security-opt=seccomp=unconfined", "--security-opt=systempaths=unconfined")
            rights = (*open_profile, *([f"--device={FUSE}"] if FUSE.exists() else []), "--init")
            place = (f"--hostname={host}", f"--network={network}", f"--network-alias={host}", "--shm-size=1g")
            daemon = "slurmctld" if host == CONTROLLER else "slurmd"
            start = ("--detach", f"--name={name}", *rights, *place, f"--volume={shared}:/shared")
            docker("run", *start, tag, "sh", "/shared/start.sh", daemon)
        (shared / "slurm.conf.new").write_text(_configuration(names))
        (shared / "slurm.conf.new").rename(shared / "slurm.conf")
        cluster = SlurmCluster(names, shared, programs)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        for command in (
            ("rm", "--force", "--volumes", exporter, *names.values()),
            ("network", "rm", network),
            ("rmi", tag),
        ):
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
