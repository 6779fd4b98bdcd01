"""Checks all hosts in parallel before anything starts. Each host that fails is reported in one line."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from cpu_train_stack.cli.errors import UsageError
from tooling.basis.identity import IDENTITY
from tooling.cluster import compose
from tooling.engine.ssh import Remote, RemoteError
from tooling.engine.ssh_causes import shorten
from tooling.hosts import commands, facts
from tooling.hosts.connections import each
from tooling.hosts.facts import Facts
from tooling.hosts.job import Job, Place

PULL_SECONDS = 1800.0
_FIXES = (
    ("not found", "install Docker Engine on the host"),
    ("permission denied", "add the user to the group docker on the host"),
    ("cannot connect to the docker daemon", "start Docker on the host: sudo systemctl start docker"),
)


# The answer to commands.image.
_IMAGE = re.compile(r"sha256:[0-9a-f]{64}( .*)?")


def places(job: Job, remotes: Sequence[Remote], unreachable: Sequence[str]) -> list[Place]:
    """Check the hosts and return the facts that the job needs.

    Raises UsageError, with the lines of `unreachable` and one for each host that fails a check.
    """

    def check(remote: Remote) -> Facts | str:
        try:
            _check_engine(job, remote)
            image_id, _, content = _image(job, remote).partition(" ")
            return replace(_facts(remote), image_id=image_id, image_content=content)
        except RemoteError as error:
            return f"{remote.name}: {error}"

    names = [remote.name for remote in remotes]
    results = each(remotes, check, names)
    lines = [*unreachable, *(result for result in results if isinstance(result, str))]
    known = [result for result in results if isinstance(result, Facts)]
    order = {host.name: index for index, host in enumerate(job.nodes)}
    if known:  # hosts that answer are compared with each other even if other hosts failed
        indices = [order[name] for name, result in zip(names, results, strict=True) if isinstance(result, Facts)]
        lines += facts.problems(job, indices, known)
    if lines:
        raise UsageError("\n".join(sorted(lines, key=lambda line: order[line.partition(":")[0]])))
    outputs = each(list(zip(remotes, known, strict=True)), lambda pair: _prepare_folders(job, *pair), names)
    return [
        Place(
            *host.container_user,
            output=output,
            shm_bytes=str(compose.shm_bytes(job.local_world_size, host.cpus)),
            image_id=host.image_id,
            address=address,
            interface=interface,
        )
        for host, output, (interface, address) in zip(known, outputs, _routes(job, remotes, known), strict=True)
    ]


def _check_engine(job: Job, remote: Remote) -> None:
    done = remote.run(commands.ENGINE)
    if done.code != 0:
        message = done.last
        fix = next((fix for text, fix in _FIXES if text in message.lower()), "run docker version on the host")
        raise RemoteError(f"Docker cannot be used: {message}: {fix}")
    present = remote.check(commands.present_jobs(job.name), "docker ps").out.split("\n")
    states = dict(line.rsplit(" ", 1) for line in present if " " in line)
    if any(state not in ("exited", "dead", "created") for state in states.values()):
        raise RemoteError(
            f"a job {job.name} is running ({', '.join(states)}): choose another --name, "
            f"or stop it with ./inv stop --name {job.name}"
        )
    if states:
        remote.check(commands.remove(*states), "docker rm")


def _image(job: Job, remote: Remote) -> str:
    """The output of commands.image, after a pull if there is an image lock or a name."""
    done = remote.run(commands.image(job.reference))
    if done.code != 0 and job.is_pulled:
        pulled = remote.run(commands.pull(job.reference), limit=PULL_SECONDS)
        if pulled.code != 0:
            raise RemoteError(f"{job.reference} is missing and cannot be pulled: {pulled.last}")
        done = remote.run(commands.image(job.reference))
    if done.code != 0:
        raise RemoteError(
            f"{job.reference} is missing: copy it to the host (docker save, docker load), "
            "or push it with ./inv push and pass --image-lock image.lock.json"
        )
    answer = done.out.strip()
    if not _IMAGE.fullmatch(answer):
        raise RemoteError(f"docker image inspect answered {shorten(answer)!r}, expected an image's ID and content")
    return answer


def _facts(remote: Remote) -> Facts:
    sent = time.time()
    clock = remote.check(commands.CLOCK, "date")
    received = time.time()
    answer = remote.check(commands.FACTS, "reading the host's properties")
    try:
        offset, error = facts.clock_offset(clock.out, sent, received)
        return replace(facts.parse(answer.out), clock=offset, clock_error=error)
    except (ValueError, KeyError, IndexError) as error:
        reason = shorten(answer.err.strip() or repr(error))
        raise RemoteError(
            f"its properties cannot be read ({reason}), expected Linux with iproute2 and bash"
        ) from error


def _prepare_folders(job: Job, remote: Remote, known: Facts) -> str:
    """Check the folder to read, create the folders to write to, and return the output folder."""
    output = job.output or f"{known.home}/cpu-train-stack/{IDENTITY}/{job.name}"
    if job.data:
        remote.check(commands.readable(job.data), f"--data {job.data}")
    for folder in filter(None, (output, job.hub)):
        remote.check(commands.writable(folder, ":".join(known.container_user)), f"folder {folder}")
    return output


def _routes(job: Job, remotes: Sequence[Remote], known: Sequence[Facts]) -> list[tuple[str, str]]:
    """The interface and address of each host on its route to the first. Raises UsageError, a line per problem."""
    first, others = known[0], list(zip(remotes, known, strict=True))[1:]
    if not others:
        address = (facts.candidates(first, []) or ["127.0.0.1"])[0]
        return [(first.addresses.get(address, "lo"), address)]
    name = job.nodes[0].name
    other_names = [remote.name for remote, _ in others]
    (answer,) = each(remotes[1:2], lambda second: second.run(commands.resolve(name)), other_names[:1])
    resolved = answer.out.split()[:1]
    failures: list[str] = []
    for address in facts.candidates(first, resolved):
        try:
            routes = each(remotes[1:], partial(_route, address=address, port=first.ssh_port), other_names)
        except UsageError as error:
            failures.append(str(error))
            continue
        wrong = facts.same_host(other_names, [own for _, own in routes]) or [
            _check_way_back(remotes[0], remote.name, route[1], host)
            for route, (remote, host) in zip(routes, others, strict=True)
        ]
        if any(wrong):
            raise UsageError("\n".join(filter(None, wrong)))
        return [(first.addresses[address], address), *routes]
    raise UsageError(
        failures[0]
        if failures
        else f"{name}: found no IPv4 address except loopback, expected one that the other hosts can reach"
    )


def _route(remote: Remote, address: str, port: str) -> tuple[str, str]:
    """The interface and the host's own address on the route to `address`, where a program listens on `port`."""
    text = remote.check(commands.route(address), f"a route to {address}").out
    try:
        interface, own = facts.route(text)
    except ValueError as error:
        raise RemoteError(f"no route to {address} ({error})") from None
    if interface == "lo":
        raise RemoteError(f"is the same host as the first ({address}): remove one of the two lines")
    remote.check(commands.connect(address, port), f"a connection to {address} port {port}")
    return interface, own


def _check_way_back(first: Remote, name: str, address: str, host: Facts) -> str:
    """A line if the first host cannot connect to the sshd of host `name`.

    Not in parallel: the first host's sshd limits the number of sessions.
    """
    (answer,) = each([first], lambda one: one.run(commands.connect(address, host.ssh_port)), [first.name])
    if answer.code == 0:
        return ""
    return f"{name}: its address {address} cannot be reached from {first.name}: allow connections between them"
