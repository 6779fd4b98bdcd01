"""Commands on other machines through the user's own `ssh`, OpenSSH.

The user's configuration applies as in a shell: aliases, jump hosts, keys, agents, certificates and known hosts.
All commands to a machine share one connection: that of the user's ControlMaster, or else one of this module. ssh
asks no questions.
"""

import re
import resource
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar, cast

from cpu_train_stack.cli import printable
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.placement.hostfile import HostfileEntry

# Unless the user's configuration has a ConnectTimeout.
CONNECT_SECONDS = 10
COMMAND_SECONDS = 60.0
END_SECONDS = 5.0
# The exit code of ssh if the connection fails, and of timeout(1).
FAILED, TIMED_OUT = 255, 124
_OPTIONS = {
    "BatchMode": "yes",
    "LogLevel": "INFO",
    # What the user may have configured for a login, but not for commands.
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    # A connection without an answer breaks after 60 s. An idle connection stays known to firewalls.
    "ServerAliveInterval": "20",
    "ServerAliveCountMax": "3",
}
# What ssh prints, and what it means. The first match applies. Groups of the pattern are fields of the text.
_CAUSES = {
    "HOST IDENTIFICATION HAS CHANGED": "the host key of {where} has CHANGED: it may be intercepted, or the host "
    "was reinstalled; if reinstalled, remove its old key with ssh-keygen -R",
    "Host key verification failed": "the host key of {where}, or of its jump host, is not known: log in to the "
    "host once with ssh, and verify its key",
    r"Permission denied \((?P<how>.*)\)": "{where} refuses your login ({how}): check your key, your agent and the "
    "user name",
    "Too many authentication failures": "{where} refuses your login after too many keys: name the right one with "
    "IdentityFile and IdentitiesOnly in ~/.ssh/config",
    r"Could not resolve hostname (?P<name>\S+): (?P<how>.*)": "{name} does not resolve ({how}): correct the name, "
    "or add it to ~/.ssh/config",
    "(?P<how>Connection refused|No route to host|Network is unreachable)": "{where} cannot be reached ({how}): "
    "check that the host is up and that sshd is running",
    "timed out|not responding": "{where} does not answer within {seconds} s: check that the host is up",
    "closed by|reset by|Broken pipe": "{where} closed the connection: read the log of its sshd",
}

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
    """The exit code of a command and its output."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line of its error output, or of its output. At most 200 characters."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return shorten(lines[-1]) if lines else f"exit code {self.code}"


@dataclass(frozen=True, eq=False)
class Session:
    """A command that runs."""

    process: subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]

    def end(self, seconds: float) -> None:
        """Wait for the end of the command, and kill it after `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.process.kill()
        self.process.wait()


class Remote:
    """A connection to the host that ssh knows as `name`. Raises RemoteError if it cannot be connected."""

    def __init__(self, name: str, user: str | None = None) -> None:
        self.name = name
        self._host = [*(["-l", user] if user else []), "--", name]
        self._options = [f"-o{key}={value}" for key, value in _OPTIONS.items()]
        self._started: set[Session] = set()
        self._closed = False
        self._stack = ExitStack()
        settings = self._settings()
        self._where = f"{settings['hostname']} port {settings['port']}"
        timeout = settings.get("connecttimeout", "none")
        self._seconds = int(timeout) if timeout.isdigit() and timeout != "0" else CONNECT_SECONDS
        self._options.append(f"-oConnectTimeout={self._seconds}")
        if settings.get("controlpath", "none") == "none" or self._ssh("-O", "check").code != 0:
            try:
                self._connect()
            except BaseException:
                self.close()
                raise

    def run(self, command: str, stdin: bytes = b"", limit: float = COMMAND_SECONDS) -> Done:
        """Run `command` in a new shell.

        Raises RemoteError if the connection breaks, or if the command has not ended after `limit` seconds.
        """
        try:
            done = subprocess.run(
                self._argv(command),
                input=stdin,
                capture_output=True,
                check=False,
                timeout=limit,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise RemoteError(
                f"{_first_words(command)} did not end within {limit:g} s: log in to the host to find out why"
            ) from None
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        if done.returncode == FAILED:
            raise RemoteError(f"{_first_words(command)} was not answered: {self._explain(err)}")
        return Done(done.returncode, out, err)

    def check(self, command: str, failure: str, stdin: bytes = b"") -> Done:
        """Like run(). Raises RemoteError with `failure` and the reason if the command fails, too."""
        done = self.run(command, stdin)
        if done.code != 0:
            raise RemoteError(f"{failure}: {'timed out' if done.code == TIMED_OUT else done.last}")
        return done

    def stream(self, command: str, lost: Callable[[], object] | None = None) -> Iterator[bytes]:
        """The output of `command` while it runs.

        Ends early if the connection breaks. Then calls `lost`, which a job does not need: its keeper reports a
        lost host. close() ends it too, without a call.
        """
        session = self.start(command, subprocess.DEVNULL)
        try:
            session.stdin.close()
            while chunk := session.stdout.read(1 << 16):
                yield chunk
            if session.process.wait() == FAILED and lost and not self._closed:
                lost()
        finally:
            self._started.discard(session)
            session.end(0)

    def start(self, command: str, stderr: IO[bytes] | int, *options: str) -> Session:
        """Start `command` in a new shell. close() ends it."""
        process = subprocess.Popen(
            self._argv(command, *options),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            # Without the terminal: ctrl-C ends ./inv, which ends its commands. A jump host's ssh asks nothing.
            start_new_session=True,
        )
        session = Session(process, cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout))
        self._started.add(session)
        return session

    def show(self, command: str, terminal: bool) -> int:
        """Run `command`, show its output, and return its exit code, or FAILED if the connection broke.

        With `terminal`, the command gets this terminal's keys and its size.
        """
        argv = self._argv(command, "-t" if terminal else "-n")
        # What ssh itself prints is left out: it ends each terminal session with a line.
        return subprocess.run(argv, stderr=subprocess.DEVNULL, check=False).returncode

    def close(self) -> None:
        """End the commands that still run, and this module's connection."""
        self._closed = True
        for session in list(self._started):
            session.process.terminate()
        for session in list(self._started):
            session.end(END_SECONDS)
        self._stack.close()

    def _settings(self) -> dict[str, str]:
        """What ssh would use for the host."""
        done = self._ssh("-G")
        if done.code != 0:
            raise RemoteError(f"ssh cannot read its configuration: {done.last}")
        return dict(line.split(" ", 1) for line in done.out.splitlines() if " " in line)

    def _connect(self) -> None:
        """Open a connection for all commands. It ends with its first command, which ends with this process."""
        # Not in the user's TMPDIR: the path of a socket has at most 107 bytes.
        temporary = tempfile.TemporaryDirectory(prefix="cts-ssh-", dir="/tmp")
        folder = Path(self._stack.enter_context(temporary))
        self._options += ["-oControlMaster=no", f"-oControlPath={folder}/master"]
        with (folder / "errors").open("wb") as errors:
            master = self.start("echo; exec cat", errors, "-oControlMaster=yes", "-oControlPersist=no")
        # The jump hosts, and logging in, take time as well.
        timer = threading.Timer(3 * self._seconds, master.process.kill)
        timer.start()
        connected = master.stdout.read(1)
        timer.cancel()
        if not connected:
            message = (folder / "errors").read_text(errors="replace")
            raise RemoteError(self._explain(message if master.process.wait() == FAILED else "timed out"))

    def _argv(self, command: str, *options: str) -> list[str]:
        """ssh's first value of an option counts."""
        return ["ssh", *options, *self._options, *self._host, shlex.join(["sh", "-c", command])]

    def _ssh(self, *options: str) -> Done:
        """What ssh reports without a command."""
        done = subprocess.run(
            ["ssh", *options, *self._host], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def _explain(self, message: str) -> str:
        """One line: why ssh failed, and what to do. `message`: what ssh printed."""
        for pattern, text in _CAUSES.items():
            if found := re.search(pattern, message):
                return printable.one_line(
                    text.format(where=self._where, seconds=self._seconds, **found.groupdict())
                )
        lines = message.strip().splitlines() or ["ssh failed without a message"]
        return f"{self._where}: {shorten(lines[-1])}"


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
    if not shutil.which("ssh"):
        raise UsageError(
            "ssh is missing, expected OpenSSH's client: install openssh-client (Debian, Ubuntu) or "
            "openssh-clients (Fedora, RHEL)"
        )
    # About ten files for each host.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def attempt(host: HostfileEntry) -> Remote | str:
        try:
            remote = Remote(host.name, host.user)
        except RemoteError as error:
            return f"{host.name}: {error}"
        stack.callback(remote.close)
        return remote

    results = each(hosts, attempt, [host.name for host in hosts])
    return (
        [result for result in results if isinstance(result, Remote)],
        [result for result in results if isinstance(result, str)],
    )


def _first_words(command: str) -> str:
    return " ".join(command.split()[:2])
