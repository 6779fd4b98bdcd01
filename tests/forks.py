"""Runs Python's command lines in forks of one process that has imported the modules: 0.02 s each instead of 0.7 s.

A fork has its own arguments, environment, folder and standard streams, and ends as every Python does. Tests of the
start itself, and of streams that are closed, start a process of their own.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

_REQUEST_BYTES = 1 << 20
_LIMIT_SECONDS = 60


class Fork:
    """A process that was started by Forks, with the methods of subprocess.Popen that the tests and tooling use."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.returncode: int | None = None
        self.pid = int(self._line(_LIMIT_SECONDS))

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process if it still runs."""
        self.kill()
        self._channel.close()

    def wait(self, timeout: float = _LIMIT_SECONDS) -> int:
        """The exit code, or -N after signal N. Raises TimeoutExpired."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(int(self._line(timeout)))
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM. Does nothing if the process has ended, as that of Popen."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL if nobody has waited for the process."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _line(self, timeout: float) -> bytes:
        self._channel.settimeout(timeout)
        try:
            return self._channel.recv(64)
        except OSError:  # TimeoutError since Python 3.10
            raise subprocess.TimeoutExpired("fork", timeout) from None


class Forks:
    """The process that is forked, with the connection to it."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def start(
        self,
        argv: Sequence[object],
        streams: Sequence[int],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Fork:
        """Start `python ARGV...`. `streams`: the descriptors of standard input, output and error."""
        request = {"argv": [*map(str, argv)], "cwd": str(cwd or Path.cwd()), "env": dict(env or os.environ)}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [theirs.fileno(), *streams])
        return Fork(ours)

    def run(
        self,
        argv: Sequence[object],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdout: IO[Any] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """The end of `python ARGV...`, with its output unless `stdout` receives it."""
        with ExitStack() as stack:
            nothing = stack.enter_context(Path(os.devnull).open())
            out, error = (stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(2))
            streams = [file.fileno() for file in (nothing, stdout or out, error)]
            code = stack.enter_context(self.start(argv, streams, cwd, env)).wait()
            for file in (out, error):
                file.seek(0)
            return subprocess.CompletedProcess([*map(str, argv)], code, out.read(), error.read())

    @contextmanager
    def piped(
        self, argv: Sequence[object], cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Iterator[tuple[Fork, IO[str], IO[str]]]:
        """A running `python ARGV...` with the pipes of its standard output and error. It is killed at the end."""
        (out, to_out), (error, to_error) = os.pipe(), os.pipe()
        with ExitStack() as stack:
            reads, reads_errors = (stack.enter_context(os.fdopen(pipe)) for pipe in (out, error))
            nothing = stack.enter_context(Path(os.devnull).open())
            process = stack.enter_context(self.start(argv, (nothing.fileno(), to_out, to_error), cwd, env))
            os.close(to_out)
            os.close(to_error)
            yield process, reads, reads_errors


@cache
def forks(modules: tuple[str, ...], cwd: Path) -> Forks:
    """A Python that has imported `modules`, in the folder from which they are imported. Ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno()), *modules]
        process = subprocess.Popen(command, cwd=cwd, pass_fds=[theirs.fileno()])

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return Forks(ours)


def _serve(channel: socket.socket) -> dict[str, Any]:
    """Fork for each request. Returns the request in the fork that runs it."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:  # this one waits, and the server goes on
            request: dict[str, Any] = json.loads(message)
            child = os.fork()
            if child == 0:
                channel.close()
                _use(descriptors)
                return request
            os.write(descriptors[0], str(child).encode())
            os.write(descriptors[0], str(os.waitpid(child, 0)[1]).encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
        _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _use(descriptors: Sequence[int]) -> None:
    for number, descriptor in enumerate(descriptors[1:]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)


def _stream(number: int, mode: str) -> io.TextIOWrapper:
    """A standard stream, as Python opens it."""
    former = (sys.stdin, sys.stdout, sys.stderr)[number]
    direct = number and os.environ.get("PYTHONUNBUFFERED")
    file: Any = os.fdopen(number, f"{mode}b", 0 if direct else -1, closefd=False)
    return io.TextIOWrapper(
        file, former.encoding, former.errors, line_buffering=number == 2, write_through=bool(direct)
    )


def _become(request: Mapping[str, Any]) -> None:
    """Run the command line."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.stdin, sys.stdout, sys.stderr = _stream(0, "r"), _stream(1, "w"), _stream(2, "w")
    option, *arguments = [word for word in request["argv"] if word != "-P"]
    if option == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif option == "-c":
        sys.argv = [option, *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - as Python
    else:
        sys.argv = [option, *arguments]
        runpy.run_path(option, run_name="__main__")


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())
    for name in sys.argv[2:]:
        __import__(name)
    gc.freeze()  # a fork would copy every page that its collector writes to
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
