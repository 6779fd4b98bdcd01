"""Commands on other machines through the user's own `ssh`, OpenSSH.

The user's configuration applies as in a shell: aliases, jump hosts, keys, agents, certificates and known hosts.
All commands to a machine share one connection: that of the user's ControlMaster, or else one of this module. ssh
asks no questions.
"""

import os
import queue
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from cpu_train_stack.cli.files import scratch
from tooling.engine import ssh_causes
from tooling.engine.ssh_causes import shorten

# Unless the user's configuration has a ConnectTimeout.
CONNECT_SECONDS = 10
COMMAND_SECONDS = 60.0
END_SECONDS = 5.0
# A host's answers have a few hundred bytes.
MOST_BYTES = 16 << 20
# The exit code of ssh if the connection fails, and of timeout(1).
FAILED, TIMED_OUT = 255, 124
# More of them, which older releases refuse: OpenSSH 8.7 and later.
_NEWER_OPTIONS = {"ForkAfterAuthentication": "no", "SessionType": "default", "StdinNull": "no"}
# A jump host's ssh does not get the options.
_NO_QUESTIONS = {"SSH_ASKPASS_REQUIRE": "never"}
_ASKING = ("DISPLAY", "SSH_ASKPASS", "WAYLAND_DISPLAY")
_OPTIONS = {
    "BatchMode": "yes",
    "ControlMaster": "no",
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


class RemoteError(Exception):
    """A host that cannot be used. The message is one line that does not name the host."""


class _EndlessError(Exception):
    """A command that does not end, or whose output does not."""


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
    """The host that ssh knows as `name`. Commands need `open` before, and end with `close`."""

    def __init__(self, name: str, user: str | None = None) -> None:
        self.name = name
        self._host = [*(["-l", user] if user else []), "--", name]
        self._options = [f"-o{key}={value}" for key, value in _OPTIONS.items()]
        self._started: set[Session] = set()
        self._closed = False
        self._stack = ExitStack()
        settings = self._settings()
        self._where = f"{settings['hostname']} port {settings['port']}"
        self._options += [f"-o{key}={value}" for key, value in _NEWER_OPTIONS.items() if key.lower() in settings]
        timeout = settings.get("connecttimeout", "none")
        self._seconds = int(timeout) if timeout.isdigit() and timeout != "0" else CONNECT_SECONDS
        self._options.append(f"-oConnectTimeout={self._seconds}")
        self._shared = settings.get("controlpath", "none") != "none" and self._ssh("-O", "check").code == 0

    def run(self, command: str, stdin: bytes = b"", limit: float = COMMAND_SECONDS) -> Done:
        """Run `command` in a new shell.

        Raises RemoteError if the connection breaks, or if the command has not ended after `limit` seconds.
        """
        session = self.start(command, subprocess.PIPE)
        try:
            done = _exchange(session, stdin, limit)
        except _EndlessError as error:
            raise RemoteError(f"{_first_words(command)} {error}: log in to the host to find out why") from None
        finally:
            self._started.discard(session)
            session.end(0)
        if done.code == FAILED or done.code < 0:
            raise RemoteError(f"{_first_words(command)} was not answered: {self._explain(done.err)}")
        return done

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
        try:
            session = self.start(command, subprocess.DEVNULL)
        except RemoteError:
            if lost and not self._closed:
                lost()
            return
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
        """Start `command` in a new shell. close() ends it. Raises RemoteError if ssh cannot be started."""
        if self._closed:
            raise RemoteError("the connection is closed")
        try:
            process = subprocess.Popen(
                self._argv(command, *options),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=_environ(),
                # Without the terminal: ctrl-C ends ./inv, which ends its commands.
                start_new_session=True,
            )
        except OSError as error:  # no memory, or too many processes
            raise RemoteError(f"ssh cannot be started: {error.strerror}") from error
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
            first = done.err.strip().partition("\n")[0]
            raise RemoteError(ssh_causes.explain(first, f"ssh cannot use its configuration for {self.name}", 0))
        return dict(line.split(" ", 1) for line in done.out.splitlines() if " " in line)

    def open(self) -> None:
        """Connect for all commands, unless the user's own connection is open. Raises RemoteError.

        The connection ends with its first command, which ends with this process.
        """
        if self._shared:
            return
        # Not in the user's TMPDIR: the path of a socket has at most 107 bytes.
        folder = self._stack.enter_context(scratch(Path("/tmp"), "cts-ssh-"))  # noqa: S108
        self._options.append(f"-oControlPath={folder}/master")
        master = self.start("echo; exec cat", subprocess.PIPE, "-oControlMaster=yes", "-oControlPersist=no")
        message, seconds = bytearray(), 3 * self._seconds  # the jump hosts, and logging in, take time as well
        reader = threading.Thread(target=_read_all, args=(master.process.stderr, message), daemon=True)
        reader.start()
        timer = threading.Timer(seconds, master.process.kill)
        timer.start()
        connected = master.stdout.read(1)
        timer.cancel()
        if connected:
            return
        code = master.process.wait()
        reader.join(END_SECONDS)
        if code in (FAILED, -signal.SIGKILL):
            text = message.decode(errors="replace") if code == FAILED else "timed out"
            raise RemoteError(self._explain(text, seconds if code < 0 else None))
        raise RemoteError(
            f"{self._where}: the login shell ended with code {code}, expected one that runs commands"
        )

    def _argv(self, command: str, *options: str) -> list[str]:
        """ssh's first value of an option counts."""
        return ["ssh", *options, *self._options, *self._host, shlex.join(["sh", "-c", command])]

    def _ssh(self, *options: str) -> Done:
        """What ssh reports without a command."""
        try:
            done = subprocess.run(
                ["ssh", *options, *self._host],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=3 * CONNECT_SECONDS,
                env=_environ(),
            )
        except subprocess.TimeoutExpired:
            raise RemoteError(f"ssh {options[0]} did not end within {3 * CONNECT_SECONDS} s") from None
        return Done(done.returncode, *(text.decode(errors="replace") for text in (done.stdout, done.stderr)))

    def _explain(self, message: str, seconds: int | None = None) -> str:
        return ssh_causes.explain(message, self._where, seconds or self._seconds)


def _read_all(pipe: IO[bytes], first: bytearray) -> None:
    """Read to the end, but keep only the first bytes: a host may print as long as the job runs."""
    while chunk := pipe.read(1 << 16):
        if len(first) < MOST_BYTES:
            first += chunk


def _exchange(session: Session, stdin: bytes, limit: float) -> Done:
    """Send `stdin` to the command, and return what it prints.

    Raises _EndlessError if it does not end within `limit` seconds, or prints too much.
    """
    out, err = bytearray(), bytearray()
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()

    def write() -> None:
        with suppress(BrokenPipeError), session.stdin:
            session.stdin.write(stdin)
        ended.put(None)

    def read(pipe: IO[bytes], text: bytearray) -> None:
        while len(text) <= MOST_BYTES and (chunk := pipe.read(1 << 16)):
            text += chunk
        ended.put(None)

    threads = [threading.Thread(target=write, daemon=True)]
    for pipe, text in ((session.stdout, out), (cast("IO[bytes]", session.process.stderr), err)):
        threads.append(threading.Thread(target=read, args=(pipe, text), daemon=True))
    end = time.monotonic() + limit
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            ended.get(timeout=max(0.0, end - time.monotonic()))
            if max(len(out), len(err)) > MOST_BYTES:
                raise _EndlessError(f"printed more than {MOST_BYTES >> 20} MiB")
        code = session.process.wait(max(0.0, end - time.monotonic()))
    except (queue.Empty, subprocess.TimeoutExpired):
        raise _EndlessError(f"did not end within {limit:g} s") from None
    return Done(code, out.decode(errors="replace"), err.decode(errors="replace"))


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _ASKING} | _NO_QUESTIONS


def _first_words(command: str) -> str:
    return " ".join(command.split()[:2])
