"""Every command that a job runs on its hosts, as text for `sh -c`. Pure: --dry-run prints these texts."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from cpu_train_stack import contract
from tooling.basis import identity
from tooling.cluster import compose, launchers
from tooling.cluster.spec import Mount, keys_folder, options
from tooling.hosts.job import Job, Place

JOB_LABEL = "cpu-train-stack.job"
# From SIGTERM to SIGKILL in `docker stop`: enough for mpirun to end its ranks.
STOP_SECONDS = 10
# A host that receives nothing from ./inv launch for this time removes its container.
SILENCE_SECONDS = 30
# Attempts to remove a container, one per second: Docker may be restarting.
REMOVE_TRIES = 600
# The time limit of one `docker wait`, which is repeated until the job ends.
WAIT_SECONDS = 60

ENGINE = "docker version --format '{{.Server.Version}}'"
CLOCK = "date +%s.%N"
# On Debian, the PATH of users other than root lacks the folders of iproute2.
_PATH = "PATH=$PATH:/usr/sbin:/sbin"
_IMAGE_CONTENT = (".RootFS.Layers", ".Config.Env", ".Config.Entrypoint", ".Config.User", ".Config.Labels")
FACTS = "; ".join(
    [
        f"set -e; {_PATH}",
        'echo "user $(id -u) $(id -g) $HOME"',
        """echo "memory $(sed -n 's/^MemAvailable: *//p' /proc/meminfo)\"""",
        'echo "cpus $(getconf _NPROCESSORS_ONLN)"',
        # The user of the images, or the first ID without an account in the range that systemd leaves free.
        "id=1000; while getent passwd $id >/dev/null; do id=$((id < 60578 ? 60578 : id + 1)); done; echo free $id",
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
    """List the names and states of the containers of this checkout's job `name`."""
    filters = shlex.join(f"--filter=label={label}" for label in labels(name))
    return f"docker ps --all {filters} --format '{{{{.Names}}}} {{{{.State}}}}'"


def image(reference: str) -> str:
    """Print the image's ID, which depends on the engine's image store, and its content, which does not."""
    content = " ".join(f"{{{{json {part}}}}}" for part in _IMAGE_CONTENT)
    return f"docker image inspect --format '{{{{.Id}}}} {content}' {shlex.quote(reference)}"


def watch(container: str, terminal: bool) -> str:
    """Follow the container's job, not an earlier one in the same output folder. `terminal`: with one."""
    name = shlex.quote(container)
    started = f'"$(date --date "$(docker inspect --format {{{{.State.StartedAt}}}} {name})" +%s)"'
    return (
        f"docker exec {'--interactive --tty ' if terminal else ''}{name} entrypoint watch --since {started} 2>&1"
    )


def pull(reference: str) -> str:
    return f"docker pull --quiet {shlex.quote(reference)}"


def readable(folder: str) -> str:
    """Fails with a message if `folder` does not exist."""
    return f"ls -d {shlex.quote(folder + '/')}"


def writable(folder: str, owner: str) -> str:
    """Create a folder that `owner` (UID:GID) can write to. Unless the ssh user is root, `owner` is that user.

    As on local clusters, root gives `owner` a new folder, or an empty one of root. For root, the permissions are
    compared with `owner`, because a file server may refuse root itself (root_squash).
    """
    path = shlex.quote(folder)
    uid, gid = map(shlex.quote, owner.split(":"))
    find = f"find -H {path} -maxdepth 0"
    kept = f'test -d {path} && test -z "$({find} -uid 0 -empty)"'
    fits = f"-uid {uid} -perm -300 -o ! -uid {uid} -gid {gid} -perm -030 -o ! -uid {uid} ! -gid {gid} -perm -003"
    refusal = f"uid {uid} cannot write to it: choose another folder, or run chown {uid}:{gid} {path}"
    return (
        f'if [ "$(id -u)" != 0 ]; then mkdir -p {path} && test -w {path}; '
        f"else {{ {kept} || {{ mkdir -p {path} && chown {uid}:{gid} {path}; }}; }} && "
        f'{{ test -n "$({find} {fits})" || {{ echo {shlex.quote(refusal)} >&2; false; }}; }}; fi'
    )


def route(address: str) -> str:
    return f"{_PATH}; ip -4 -o route get {shlex.quote(address)}"


def resolve(name: str) -> str:
    return f"getent ahostsv4 {shlex.quote(name)}"


def connect(address: str, port: str) -> str:
    """Fails if a connection to `address` cannot be opened. The host's sshd listens on `port`."""
    return shlex.join(["timeout", "5", "bash", "-c", 'exec 3<>"/dev/tcp/$0/$1"', address, port])


def create(job: Job, index: int, places: Sequence[Place]) -> str:
    """Create the container of host `index`. It runs torchrun's agent or sshd; on the first host, mpirun too."""
    if job.mpirun:
        return _create_for_mpirun(job, index, places)
    low, high = job.port_range
    ports = {"FI_TCP_PORT_LOW_RANGE": str(low), "FI_TCP_PORT_HIGH_RANGE": str(high)}
    launch = launchers.launch(
        job.command,
        ranks_per_node=job.local_world_size,
        nodes=len(job.nodes),
        node_rank=index,
        master_addr=places[0].address,
        master_port=job.port,
    )
    return _create(job, index, places, {**ports, **_environment(job, places)}, launch)


def _create_for_mpirun(job: Job, index: int, places: Sequence[Place]) -> str:
    if index > 0:
        return _create(job, index, places, {}, ["sshd", f"--port={job.ssh_port}"])
    environment = _environment(job, places)
    launch = launchers.mpi_launch(
        job.command,
        variables=environment,
        hosts=[place.address for place in places],
        ranks_per_node=job.local_world_size,
        port=job.ssh_port,
        timeout=launchers.MPI_START_SECONDS,
    )
    low, high = job.port_range
    own = {
        "MASTER_PORT": str(job.port),
        "I_MPI_PORT_RANGE": f"{low}:{high}",
        # hydra's proxies connect back to this interface. The host's own name may resolve to loopback there.
        "I_MPI_HYDRA_IFACE": places[0].interface,
    }
    # hydra starts the ranks of the first host without ssh, in the container of mpirun.
    both = 'entrypoint sshd "--port=$0" & exec entrypoint "$@"'
    return _create(job, 0, places, {**own, **environment}, ["sh", "-c", both, str(job.ssh_port), *launch])


def put_keys(container: str) -> str:
    """Unpack an archive of tooling.cluster.keys into a container that has not been started."""
    return f"docker cp - {shlex.quote(container)}:/"


def start(container: str) -> str:
    return f"docker start {shlex.quote(container)}"


def logs(container: str, follow: bool = True) -> str:
    return f"docker logs {'--follow ' if follow else ''}{shlex.quote(container)} 2>&1"


def wait(container: str) -> str:
    """Print the exit code of a container, or nothing if it does not end within WAIT_SECONDS."""
    return f"timeout {WAIT_SECONDS} docker wait {shlex.quote(container)}"


def state(container: str) -> str:
    """Print the state of a container as JSON."""
    return f"docker inspect --format '{{{{json .State}}}}' {shlex.quote(container)}"


def remove(*containers: str) -> str:
    """Stop and remove containers. Fails if a container is left. A missing container is not an error."""
    names = shlex.join(containers)
    filters = shlex.join(f"--filter=name=^/{name}$" for name in containers)
    gone = f'left=$(docker ps --all --quiet {filters}) && test -z "$left"'
    return f"docker stop -t {STOP_SECONDS} {names}; docker rm --force --volumes {names}; {gone}"


def keep(container: str) -> str:
    """Answer each line with a line. Remove the container at the end of the session, or if no line arrives."""
    loop = f"while IFS= read -r -t {SILENCE_SECONDS} _; do echo; done"
    again = f'do n=$((n+1)); test "$n" -lt {REMOVE_TRIES} || exit 1; sleep 1; done'
    # No signal may end the script before the removal: not SIGHUP at the end of the session, not SIGPIPE.
    script = f"trap '' HUP INT TERM PIPE; echo; {loop}; until {{ {remove(container)}; }} >/dev/null 2>&1; {again}"
    return shlex.join(["bash", "-c", script])


def dry_run(job: Job, places: Sequence[Place]) -> list[tuple[str, str]]:
    """Every command of the job in order, each with the name of its host."""
    names = [host.name for host in job.nodes]
    checks = [ENGINE, present_jobs(job.name), image(job.reference)]
    checks += [pull(job.reference)] if job.is_pulled else []
    checks += [CLOCK, FACTS]
    checks += [readable(job.data)] if job.data else []
    folders = [places[0].output, *([job.hub] if job.hub else [])]
    checks += [writable(folder, f"{places[0].uid}:{places[0].gid}") for folder in folders]
    result = [(name, command) for name in names for command in checks]
    if len(names) > 1:
        result.append((names[1], resolve(names[0])))
    for name, place in zip(names[1:], places[1:], strict=True):
        result.append((name, route(places[0].address)))
        result.append((name, connect(places[0].address, "SSH_PORT")))
        result.append((names[0], connect(place.address, "SSH_PORT")))
    containers = [(name, job.container(index)) for index, name in enumerate(names)]
    result += [(name, keep(container)) for name, container in containers]
    for index, (name, container) in enumerate(containers):
        result.append((name, create(job, index, places)))
        result += [(name, put_keys(container))] if job.mpirun else []
    result += [(name, start(container)) for name, container in containers]
    for name, container in containers:
        result += [(name, command(container)) for command in (logs, wait, state)]
    return result


def _environment(job: Job, places: Sequence[Place]) -> dict[str, str | None]:
    hub = {"HF_HOME": "/hub"} if job.hub else {}
    # ./inv stop and ctrl-C end the job at once.
    return {contract.IMAGE: places[0].image_id, contract.GRACE_SECONDS: "0", **hub, **job.environment}


def _create(
    job: Job, index: int, places: Sequence[Place], environment: Mapping[str, str | None], command: Sequence[str]
) -> str:
    """A container like those of a local cluster, on the host's network.

    The variables of job.forwarded are read from standard input, so that no argument list and no file has them.
    """
    place = places[index]
    user = f"{place.uid}:{place.gid}"
    mounts = [(job.data, contract.DATA, True), (place.output, contract.OUTPUT, False), (job.hub, "/hub", False)]
    spec = compose.container(
        job.launcher,
        {name: value for name, value in environment.items() if value is not None},
        image=place.image_id,
        user=user,
        labels=dict(text.split("=", 1) for text in labels(job.name)),
        networks=(),
        network_mode="host",
        dns_search=(),
        shm_size=place.shm_bytes,
        memory=job.memory,
        tmpfs=(keys_folder(user),) if job.mpirun else (),
        volumes=tuple(Mount(Path(source), target, locked) for source, target, locked in mounts if source),
        command=tuple(command),
    )
    argv = ["docker", "create", f"--name={job.container(index)}", "--pull=never", *options(spec)]
    if None not in environment.values():
        return shlex.join([*argv, spec.image, *spec.words])
    # Through cat, because /dev/stdin cannot be opened if standard input is a socket, as it may be under sshd.
    return f"cat | {shlex.join([*argv, '--env-file=/dev/stdin', spec.image, *spec.words])}"
