"""Checks all hosts in parallel before anything starts. Each host that fails is reported in one line."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from entrypoints.launch.mpi.hostfile import Host
from tooling.basis.errors import UsageError
from tooling.basis.identity import IDENTITY
from tooling.cluster import compose
from tooling.hosts import commands, facts
from tooling.hosts.facts import Facts
from tooling.hosts.job import Job, Place
from tooling.hosts.remote import Done, Remote, RemoteError

PULL_SECONDS = 1800.0
_FIXES = (
    ("not found", "install Docker Engine on the host"),
    ("permission denied", "add the user to the group docker on the host"),
    ("cannot connect to the docker daemon", "start Docker on the host: sudo systemctl start docker"),
)


Item = TypeVar("Item")
Result = TypeVar("Result")


def each(items: Sequence[Item], work: Callable[[Item], Result], names: Sequence[str]) -> list[Result]:
    """`work` on all items at once. Raises UsageError with a line for each that raised RemoteError."""
    with ThreadPoolExecutor(max_workers=max(1, len(items))) as pool:
        futures = [pool.submit(work, item) for item in items]
    failures = []
    for name, future in zip(names, futures, strict=True):
        error = future.exception()
        if isinstance(error, RemoteError):
            failures.append(f"{name}: {error}")
    if failures:
        raise UsageError("\n".join(failures))
    return [future.result() for future in futures]


def connect(hosts: Sequence[Host]) -> tuple[list[Remote], list[str]]:
    """The hosts that can be connected to, and a line for each that cannot."""

    def one(host: Host) -> Remote | str:
        try:
            return Remote(host)
        except RemoteError as error:
            return f"{host.name}: {error}"

    found = each(hosts, one, [host.name for host in hosts])
    return [one for one in found if isinstance(one, Remote)], [one for one in found if isinstance(one, str)]


def places(job: Job, remotes: Sequence[Remote], unreachable: Sequence[str]) -> list[Place]:
    """What the job needs to know about its hosts. Raises UsageError, one line for each host that fails a check."""
    names = [remote.name for remote in remotes]
    lines = list(unreachable)

    def check(remote: Remote) -> tuple[Facts, str] | str:
        try:
            _engine(job, remote)
            identifier = _image(job, remote)
            return _facts(remote), identifier
        except RemoteError as error:
            return f"{remote.name}: {error}"

    seen = each(remotes, check, names)
    lines += [one for one in seen if isinstance(one, str)]
    fit = [(remote, one) for remote, one in zip(remotes, seen, strict=True) if not isinstance(one, str)]
    order = {host.name: place for place, host in enumerate(job.hosts)}
    if fit:  # hosts that answer are compared with each other even if other hosts failed
        at = [order[remote.name] for remote, _ in fit]
        lines += facts.problems(job, at, [one[0] for _, one in fit], [one[1] for _, one in fit])
    if lines:
        raise UsageError("\n".join(sorted(lines, key=lambda line: order[line.partition(":")[0]])))
    known = [one[0] for _, one in fit]
    folders = each(list(zip(remotes, known, strict=True)), lambda pair: _folders(job, *pair), names)
    ways = _ways(job, remotes, known)
    return [
        Place(
            *its.container_user,
            output=output,
            shm_bytes=str(compose.shm_bytes(job.ranks_per_node, its.cpus)),
            image_id=one[1],
            address=address,
            interface=interface,
        )
        for its, output, (_, one), (interface, address) in zip(known, folders, fit, ways, strict=True)
    ]


def _engine(job: Job, remote: Remote) -> None:
    done = remote.run(commands.ENGINE)
    if done.code != 0:
        said = done.last
        fix = next((fix for text, fix in _FIXES if text in said.lower()), "run docker version on the host")
        raise RemoteError(f"Docker cannot be used: {_cut(said)}: {fix}")
    present = _checked(remote, commands.present_jobs(job.name), "docker ps").out.split("\n")
    states = dict(line.rsplit(" ", 1) for line in present if " " in line)
    if any(state not in ("exited", "dead", "created") for state in states.values()):
        raise RemoteError(
            f"a job {job.name} is running ({', '.join(states)}): choose another --name, "
            f"or stop it with ./inv stop --name {job.name}"
        )
    if states:
        _checked(remote, commands.remove(*states), "docker rm")


def _image(job: Job, remote: Remote) -> str:
    done = remote.run(commands.image_id(job.image))
    if done.code != 0 and job.locked:
        pulled = remote.run(commands.pull(job.image), limit=PULL_SECONDS)
        if pulled.code != 0:
            raise RemoteError(f"{job.image} is missing and cannot be pulled: {_cut(pulled.last)}")
        done = remote.run(commands.image_id(job.image))
    if done.code != 0:
        raise RemoteError(
            f"{job.image} is missing: copy it to the host (docker save, docker load), "
            "or push it and launch with --image-lock image.lock.json"
        )
    return done.out.strip()


def _facts(remote: Remote) -> Facts:
    sent = time.time()
    clock = _checked(remote, commands.CLOCK, "date")
    received = time.time()
    text = _checked(remote, commands.FACTS, "reading the host's properties")
    try:
        offset, error = facts.clock_offset(clock.out, sent, received)
        return replace(facts.parse(text.out), clock=offset, clock_error=error)
    except (ValueError, KeyError, IndexError) as error:
        why = _cut(text.err.strip() or repr(error))
        raise RemoteError(
            f"its properties cannot be read ({why}), expected Linux with iproute2 and bash"
        ) from error


def _folders(job: Job, remote: Remote, its: Facts) -> str:
    """Checks the folders to mount and creates the writable ones. Returns the output folder."""
    output = job.output or f"{its.home}/cpu-train-stack/{IDENTITY}/{job.name}"
    if job.data:
        _checked(remote, commands.readable(job.data), f"--data {job.data}")
    for folder in filter(None, (output, job.hub)):
        _checked(remote, commands.writable(folder, ":".join(its.container_user)), f"folder {folder}")
    return output


def _ways(job: Job, remotes: Sequence[Remote], known: Sequence[Facts]) -> list[tuple[str, str]]:
    """Interface and address of each host on the way to the first. Raises UsageError, a line for each without."""
    first, others = known[0], list(zip(remotes, known, strict=True))[1:]
    if not others:
        address = (facts.candidates(first, []) or ["127.0.0.1"])[0]
        return [(first.addresses.get(address, "lo"), address)]
    names = [remote.name for remote, _ in others]
    resolved = [
        word
        for remote, _ in others[:1]
        for word in remote.run(f"getent ahostsv4 {job.hosts[0].name}").out.split()[:1]
    ]
    failures: list[str] = []
    for address in facts.candidates(first, resolved):
        try:
            ways = each(others, lambda pair, to=address: _way(pair[0], to, first.ssh_port), names)  # type: ignore[misc]
        except UsageError as error:
            failures.append(str(error))
            continue
        wrong = facts.same_host(names, [own for _, own in ways]) or [
            _back(remotes[0], name, way[1], its) for name, way, (_, its) in zip(names, ways, others, strict=True)
        ]
        if any(wrong):
            raise UsageError("\n".join(filter(None, wrong)))
        return [(first.addresses[address], address), *ways]
    raise UsageError(failures[0] if failures else f"{job.hosts[0].name}: has no IPv4 address other than loopback")


def _way(remote: Remote, address: str, port: str) -> tuple[str, str]:
    """Interface and own address on the route to `address`, where a program listens on `port`."""
    text = _checked(remote, commands.route(address), f"a route to {address}").out
    try:
        interface, own = facts.route(text)
    except ValueError as error:
        raise RemoteError(f"no route to {address} ({error})") from None
    if interface == "lo":
        raise RemoteError(f"is the first host, whose address is {address}: remove one of the two lines")
    _checked(remote, commands.reach(address, port), f"a connection to {address} port {port}")
    return interface, own


def _back(first: Remote, name: str, address: str, its: Facts) -> str:
    """A line where the first host cannot connect to the other's sshd. One after another: sshd bounds sessions."""
    if first.run(commands.reach(address, its.ssh_port)).code == 0:
        return ""
    return f"{name}: its address {address} cannot be reached from {first.name}: open the network between them"


def _checked(remote: Remote, command: str, what: str) -> Done:
    done = remote.run(command)
    if done.code != 0:
        last = "it takes too long" if done.code == 124 else _cut(done.last)
        raise RemoteError(f"{what}: {last}")
    return done


def _cut(text: str, limit: int = 200) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[:limit]}…"
