"""Commands on hosts over ssh, with Fabric and the user's own ssh configuration."""

import logging
import os
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fabric import Config, Connection
from paramiko import Channel, RejectPolicy, SSHException
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey
from paramiko.ssh_exception import AuthenticationException, BadHostKeyException, NoValidConnectionsError

from cpu_train_stack.cli import printable
from cpu_train_stack.cli.errors import one_line
from cpu_train_stack.launch.mpi.hostfile import HostfileEntry
from tooling.basis.errors import UsageError

CONNECT_SECONDS = 10
COMMAND_SECONDS = 60.0
# Between two messages on a connection that is not used otherwise: a firewall or a router would forget it.
KEEPALIVE_SECONDS = 30
# How long the other side may acknowledge nothing that was sent. By default, Linux waits for about 15 minutes.
LOST_SECONDS = 60
# Instead of an exit code, if the host sent none: the connection broke.
NO_STATUS = -1
# The exit code of timeout(1).
TIMED_OUT = 124
_KNOWN_HOSTS = {
    "userknownhostsfile": "~/.ssh/known_hosts ~/.ssh/known_hosts2",
    "globalknownhostsfile": "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
}
# explain() replaces paramiko's own messages with one line.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)


Item = TypeVar("Item")
Result = TypeVar("Result")


def shorten(text: str, limit: int = 200) -> str:
    """The text on one line."""
    line = printable.one_line(text)
    return line if len(line) <= limit else f"{line[:limit]}…"


class RemoteError(Exception):
    """A host that cannot be used. The message is one line that does not name the host."""


@dataclass(frozen=True)
class Done:
    """The exit code of a command (-1 if the host sent none) and its output."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line of its error output, or of its output. At most 200 characters."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return shorten(lines[-1]) if lines else f"exit code {self.code}"


class Remote:
    """A connection to `host`, whose key must be known. Raises RemoteError if the connection fails."""

    def __init__(self, host: HostfileEntry) -> None:
        self.name = host.name
        try:
            self._connection = Connection(
                host.name,
                user=host.user,
                config=Config(),
                connect_kwargs={
                    "banner_timeout": CONNECT_SECONDS,
                    "auth_timeout": CONNECT_SECONDS,
                    "channel_timeout": CONNECT_SECONDS,
                },
            )
            self._connection.connect_timeout = self._connection.connect_timeout or CONNECT_SECONDS
            _require_known_keys(self._connection)
            self._connection.open()
            if transport := self._connection.client.get_transport():
                transport.set_keepalive(KEEPALIVE_SECONDS)
            _limit_silence(self._connection)
        except (OSError, SSHException, EOFError, ValueError) as error:
            self.close()
            raise RemoteError(explain(error, self._where())) from error

    def run(self, command: str, stdin: bytes = b"", limit: float = COMMAND_SECONDS) -> Done:
        """Run `command` in a new shell.

        Raises RemoteError if the connection breaks, or if the command has not ended after `limit` seconds.
        """
        try:
            channel = self.session(command)
            try:
                with _closing_after(limit, channel):
                    channel.sendall(stdin)
                    channel.shutdown_write()
                    with channel.makefile("rb") as out, channel.makefile_stderr("rb") as err:
                        texts = [stream.read().decode(errors="replace") for stream in (out, err)]
                    code = channel.recv_exit_status()
            except TimeoutError:
                raise RemoteError(
                    f"{_first_word(command)} did not end within {limit:g} s: log in to the host to find out why"
                ) from None
            channel.close()
        except (OSError, SSHException, EOFError) as error:
            raise RemoteError(
                f"{_first_word(command)} was not answered: {explain(error, self._where())}"
            ) from error
        return Done(code, *texts)

    def check(self, command: str, failure: str, stdin: bytes = b"") -> Done:
        """Like run(). Raises RemoteError with `failure` and the reason if the command fails, too."""
        done = self.run(command, stdin)
        if done.code != 0:
            raise RemoteError(f"{failure}: {'timed out' if done.code == TIMED_OUT else done.last}")
        return done

    def stream(self, command: str, lost: Callable[[], object] | None = None) -> Iterator[bytes]:
        """The output of `command` while it runs.

        Ends early if the connection breaks. Then calls `lost`, which a job does not need: its keeper reports a
        lost host.
        """
        try:
            channel = self.session(command)
            while chunk := channel.recv(1 << 16):
                yield chunk
            broken = lost is not None and channel.recv_exit_status() == NO_STATUS
        except (OSError, SSHException, EOFError):
            broken = True
        if lost and broken:
            lost()

    def session(self, command: str, terminal: tuple[int, int] | None = None) -> Channel:
        """Start `command` in a new shell. Raises OSError or SSHException.

        `terminal`: the columns and lines of the terminal that the command gets; None for no terminal.
        """
        transport = self._connection.client.get_transport()
        if transport is None:
            raise SSHException("the connection is closed")
        channel = transport.open_session()
        with _closing_after(CONNECT_SECONDS, channel):
            if terminal:
                channel.get_pty(os.environ.get("TERM", "xterm"), *terminal)
            channel.exec_command(shlex.join(["sh", "-c", command]))
        return channel

    def close(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.client.close()
            if isinstance(connection.gateway, Connection):
                connection.gateway.client.close()

    def _where(self) -> str:
        connection = getattr(self, "_connection", None)
        return f"{connection.host} port {connection.port}" if connection is not None else self.name


def each(items: Sequence[Item], work: Callable[[Item], Result], names: Sequence[str]) -> list[Result]:
    """Call `work` on all items in parallel. Raises UsageError with a line for each that raised RemoteError."""
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


def connect(hosts: Sequence[HostfileEntry], stack: ExitStack) -> tuple[list[Remote], list[str]]:
    """The connections, which `stack` closes, and a line for each host that could not be connected."""

    def attempt(host: HostfileEntry) -> Remote | str:
        try:
            return Remote(host)
        except RemoteError as error:
            return f"{host.name}: {error}"

    results = each(hosts, attempt, [host.name for host in hosts])
    remotes = [result for result in results if isinstance(result, Remote)]
    for remote in remotes:
        stack.callback(remote.close)
    return remotes, [result for result in results if isinstance(result, str)]


@contextmanager
def _closing_after(seconds: float, channel: Channel) -> Iterator[None]:
    """Close `channel` after `seconds`, which ends every blocking call on it, and raise TimeoutError."""
    late = threading.Event()

    def close() -> None:
        late.set()
        with suppress(OSError, SSHException, EOFError):  # the connection has ended
            channel.close()

    timer = threading.Timer(seconds, close)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, SSHException, EOFError):
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError


def explain(error: Exception, where: str) -> str:
    """One line: why a connection failed, and what to do."""
    if isinstance(error, BadHostKeyException):
        return (
            f"the host key of {where} has CHANGED: it may be intercepted, or the host was reinstalled; "
            "if reinstalled, remove its old key with ssh-keygen -R"
        )
    if isinstance(error, AuthenticationException):
        return f"{where} refuses your login ({one_line(error)}): check your key, your agent and the user name"
    if isinstance(error, socket.gaierror):
        return (
            f"{where.split()[0]} does not resolve ({error.strerror}): correct the name, or add it to ~/.ssh/config"
        )
    if isinstance(error, NoValidConnectionsError):
        return f"{where} cannot be reached ({_reason(error)}): check that the host is up and that sshd is running"
    if isinstance(error, TimeoutError):
        return f"{where} does not answer within {CONNECT_SECONDS} s: check that the host is up"
    if "not found in known_hosts" in str(error):
        return f"the host key of {where} is not known: log in to the host once with ssh, and verify its key"
    if isinstance(error, EOFError):
        return f"{where} closed the connection: read the log of its sshd"
    return f"{where}: {one_line(error)}"


def _require_known_keys(connection: Connection) -> None:
    """Refuse unknown host keys, also those of gateways: Fabric accepts them by default."""
    client = connection.client
    client.set_missing_host_key_policy(RejectPolicy())
    for option, default in _KNOWN_HOSTS.items():
        for name in str(connection.ssh_config.get(option, default)).split():
            path = Path(name).expanduser()
            if path.is_file():
                for entry in known_keys(path.read_text(encoding="utf-8", errors="replace")):
                    for known in entry.hostnames:
                        client.get_host_keys().add(known, entry.key.get_name(), entry.key)
    if str(connection.ssh_config.get("identitiesonly", "no")).lower() == "yes":
        connection.connect_kwargs["look_for_keys"] = False
    if isinstance(connection.gateway, Connection):
        connection.gateway.connect_timeout = connection.gateway.connect_timeout or CONNECT_SECONDS
        _require_known_keys(connection.gateway)


def known_keys(text: str) -> list[HostKeyEntry]:
    """The entries of a known_hosts file, without revoked keys and without lines that paramiko cannot parse.

    Certificate authorities are not supported.
    """
    entries, revoked = [], set()
    for line in text.splitlines():
        marker, rest = line.split(maxsplit=1) if line.startswith("@") and " " in line else ("", line)
        try:
            entry = HostKeyEntry.from_line(rest.strip()) if rest.strip() and not rest.startswith("#") else None
        except (InvalidHostKey, SSHException):
            continue
        if entry is not None and marker == "@revoked":
            revoked.add(entry.key.asbytes())
        elif entry is not None and not marker:
            entries.append(entry)
    return [entry for entry in entries if entry.key.asbytes() not in revoked]


def _limit_silence(connection: Connection) -> None:
    """Let a connection, or that to its gateway, break after LOST_SECONDS in which nothing is acknowledged."""
    stream = getattr(connection.client.get_transport(), "sock", None)
    if isinstance(stream, socket.socket):  # not a gateway's channel or a ProxyCommand
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_SECONDS * 1000)
    if isinstance(connection.gateway, Connection):
        _limit_silence(connection.gateway)


def _reason(error: NoValidConnectionsError) -> str:
    return ", ".join(dict.fromkeys(str(one.strerror or one) for one in error.errors.values()))


def _first_word(command: str) -> str:
    return " ".join(command.split()[:2])
