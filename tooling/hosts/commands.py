"""Every command that a job runs on its hosts, as text for `sh -c`. Pure: what is printed is what is run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from entrypoints import contract
from tooling.basis import identity
from tooling.cluster import launchers
from tooling.hosts.job import Job, Place

JOB_LABEL = "cpu-train-stack.job"
# The engine's answer to `docker stop`: SIGTERM, then after so many seconds SIGKILL. mpirun ends its ranks first.
STOP_SECONDS = 10
# A host that receives nothing from ./inv launch for this long removes its container.
SILENCE_SECONDS = 30
# How often the removal is tried, once a second: Docker may be restarting.
REMOVE_TRIES = 600
# The limit of one `docker wait`, which is repeated until the job ends.
WAIT_SECONDS = 60

ENGINE = "docker version --format '{{.Server.Version}}'"
CLOCK = "date +%s.%N"
# Debian's PATH for users who are not root lacks the folders of iproute2.
_PATH = "PATH=$PATH:/usr/sbin:/sbin"
FACTS = "; ".join(
    [
        f"set -e; {_PATH}",
        'echo "user $(id -u) $(id -g) $HOME"',
        """echo "memory $(sed -n 's/^MemAvailable: *//p' /proc/meminfo)\"""",
        'echo "cpus $(getconf _NPROCESSORS_ONLN)"',
        'echo "ssh $SSH_CONNECTION"',
        "ip -4 -o address show up | sed 's/^/address /'",
        "ss -Hltn | sed 's/^/listening /'",
        "sed '/^$/q; s/^/cpu /' /proc/cpuinfo",
    ]
)


def labels(name: str) -> tuple[str, str]:
    """The labels of the containers of this checkout's job `name`."""
    return f"{JOB_LABEL}={name}", f"{identity.LABEL}={identity.IDENTITY}"


def present_jobs(name: str) -> str:
    """The containers of this checkout's job `name` on a host: their names and states."""
    filters = " ".join(f"--filter label={label}" for label in labels(name))
    return f"docker ps --all {filters} --format '{{{{.Names}}}} {{{{.State}}}}'"


def image_id(reference: str) -> str:
    return f"docker image inspect --format '{{{{.Id}}}}' {shlex.quote(reference)}"


def pull(reference: str) -> str:
    return f"docker pull --quiet {shlex.quote(reference)}"


def readable(folder: str) -> str:
    """Fails, with a line, where `folder` is not there."""
    return f"ls -d {shlex.quote(folder + '/')}"


def writable(folder: str, owner: str) -> str:
    """Makes a folder that `owner` (UID:GID) may write to; root gives it away, others make their own."""
    path = shlex.quote(folder)
    return f'mkdir -p {path} && if [ "$(id -u)" = 0 ]; then chown {owner} {path}; fi && test -w {path}'


def route(address: str) -> str:
    return f"{_PATH}; ip -4 -o route get {address}"


def reach(address: str, port: str) -> str:
    """Whether a host can be connected to: its own sshd listens at `port`."""
    return f"timeout 5 bash -c 'exec 3<>/dev/tcp/{address}/{port}'"


def create(job: Job, index: int, places: Sequence[Place]) -> str:
    """The container of host `index`: torchrun's agent; or a server that ranks are started by, and first mpirun."""
    if job.mpirun:
        return _mpirun(job, index, places)
    low, high = job.port_range
    ports = {"FI_TCP_PORT_LOW_RANGE": str(low), "FI_TCP_PORT_HIGH_RANGE": str(high)}
    launch = launchers.launch(
        job.command,
        ranks_per_node=job.ranks_per_node,
        nodes=len(job.hosts),
        node_rank=index,
        master_addr=places[0].address,
        master_port=job.port,
    )
    return _create(job, index, places, {**ports, **_environment(job, places)}, launch)


def _mpirun(job: Job, index: int, places: Sequence[Place]) -> str:
    if index > 0:
        return _create(job, index, places, {}, ["sshd", f"--port={job.ssh_port}"])
    environment = _environment(job, places)
    launch = launchers.mpi_launch(
        job.command,
        variables=environment,
        hosts=[place.address for place in places],
        ranks_per_node=job.ranks_per_node,
        port=job.ssh_port,
        timeout=launchers.MPI_START_SECONDS,
    )
    low, high = job.port_range
    own = {
        "MASTER_PORT": str(job.port),
        "I_MPI_PORT_RANGE": f"{low}:{high}",
        # The nodes' helpers connect back to it, and the host's own name may mean loopback there.
        "I_MPI_HYDRA_IFACE": places[0].interface,
    }
    # hydra starts the ranks of its own address without ssh, in its own container.
    both = 'entrypoint sshd "--port=$0" & exec entrypoint "$@"'
    return _create(job, 0, places, {**own, **environment}, ["sh", "-c", both, str(job.ssh_port), *launch])


def put_keys(container: str) -> str:
    """Unpacks the archive of tooling.hosts.keys into a container that is not started yet."""
    return f"docker cp - {container}:/"


def start(container: str) -> str:
    return f"docker start {container}"


def logs(container: str, follow: bool = True) -> str:
    return f"docker logs {'--follow ' if follow else ''}{container} 2>&1"


def wait(container: str) -> str:
    """Prints the exit code of a container that ends within WAIT_SECONDS, otherwise nothing."""
    return f"timeout {WAIT_SECONDS} docker wait {container}"


def state(container: str) -> str:
    """Why a container ended, beside its exit code; and for ./inv status."""
    form = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Error}}"
    return f"docker inspect --format '{form}' {container}"


def remove(*containers: str) -> str:
    """Stops and removes containers. Fails if one is left; a missing container is not an error."""
    names = " ".join(containers)
    filters = " ".join(f"--filter 'name=^/{name}$'" for name in containers)
    gone = f'left=$(docker ps --all --quiet {filters}) && test -z "$left"'
    return f"docker stop -t {STOP_SECONDS} {names}; docker rm --force --volumes {names}; {gone}"


def keep(container: str) -> str:
    """Answers each line with a line. Removes the container after a silence or at the end of the session."""
    loop = f"while IFS= read -r -t {SILENCE_SECONDS} _; do echo; done"
    again = f'do n=$((n+1)); test "$n" -lt {REMOVE_TRIES} || exit 1; sleep 1; done'
    # No signal may end the script before the removal: not the session's end, not an answer that nothing reads.
    script = f"trap '' HUP INT TERM PIPE; echo; {loop}; until {{ {remove(container)}; }} >/dev/null 2>&1; {again}"
    return shlex.join(["bash", "-c", script])


def _environment(job: Job, places: Sequence[Place]) -> dict[str, str | None]:
    hub = {"HF_HOME": "/hub"} if job.hub else {}
    return {contract.IMAGE: places[0].image_id, **hub, **job.environment}


def _create(
    job: Job, index: int, places: Sequence[Place], environment: Mapping[str, str | None], command: Sequence[str]
) -> str:
    """The same limits as compose/*.yaml, on the host's own network.

    The caller's own values come line by line over standard input: no argument list and no file has them.
    """
    place = places[index]
    argv = [
        "docker",
        "create",
        f"--name={job.container(index)}",
        *(f"--label={label}" for label in labels(job.name)),
        "--pull=never",
    ]
    argv += ["--network=host", f"--user={place.uid}:{place.gid}", "--cap-drop=ALL"]
    argv += ["--security-opt=no-new-privileges:true", f"--stop-timeout={STOP_SECONDS}", "--restart=no"]
    argv += [f"--shm-size={place.shm_bytes}", "--env=HOME=/tmp"]
    if job.mpirun:  # ssh works on copies of the keys there
        argv.append(f"--tmpfs=/run/ssh:mode=0700,uid={place.uid},gid={place.gid},size=1m")
    if job.memory:
        argv += [f"--memory={job.memory}", f"--memory-swap={job.memory}"]
    if job.data:
        argv.append(f"--mount=type=bind,source={job.data},target=/data,readonly")
    argv.append(f"--mount=type=bind,source={place.output},target=/output")
    if job.hub:
        argv.append(f"--mount=type=bind,source={job.hub},target=/hub")
    argv += [f"--env={name}" if value is None else f"--env={name}={value}" for name, value in environment.items()]
    handed_on = [name for name, value in environment.items() if value is None]
    reads = [f"IFS= read -r {name} && export {name} &&" for name in handed_on]
    return " ".join([*reads, shlex.join([*argv, place.image_id, *command])])
