"""Commands on a host over ssh, with a real server: paramiko's, in this process."""

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paramiko
import pytest

from cpu_train_stack.launch.mpi.hostfile import HostfileEntry
from tooling.hosts import commands, container, control, record, remote
from tooling.hosts.container import State
from tooling.hosts.record import Record
from tooling.hosts.remote import Done, Remote, RemoteError

# A command without a time limit would block the test.
pytestmark = pytest.mark.timeout(30)


class Server:
    """An ssh server that accepts every key. `_execute` and `_run` have its commands."""

    def __init__(self) -> None:
        self.key = paramiko.ECDSAKey.generate()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._transports: list[paramiko.Transport] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._listener.close()
        for transport in self._transports:
            transport.close()

    def _serve(self) -> None:
        interface = paramiko.ServerInterface()
        interface.get_allowed_auths = lambda _user: "publickey"
        interface.check_auth_publickey = lambda _user, _key: paramiko.AUTH_SUCCESSFUL
        interface.check_channel_request = lambda _kind, _number: paramiko.OPEN_SUCCEEDED
        interface.check_channel_exec_request = self._execute
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(self.key)
            self._transports.append(transport)
            transport.start_server(server=interface)

    def _execute(self, channel: paramiko.Channel, command: bytes) -> bool:
        if b"never" in command:
            self._over.wait()
            return False
        threading.Thread(target=self._run, args=(channel, command), daemon=True).start()
        return True

    def _run(self, channel: paramiko.Channel, command: bytes) -> None:
        if b"print" in command:  # it does not wait for the end of its input
            time.sleep(1)  # for the answer to its request
        else:
            while channel.recv(64):  # its input ends after the client has had the answer to its request
                continue
        channel.sendall(b"said\n")
        if b"break" in command:
            channel.get_transport().close()
            return
        while b"dribble" in command:
            if channel.closed:  # by the client
                return
            channel.send(b".")
            time.sleep(0.1)
        if b"linger" in command:  # its output ends, it does not
            channel.shutdown_write()
            self._over.wait()
        channel.send_exit_status(3)
        channel.close()


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    """A connection to a server in the ssh configuration of a temporary home folder."""
    folder = tmp_path / ".ssh"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    paramiko.ECDSAKey.generate().write_private_key_file(str(folder / "id_ecdsa"))
    with serving() as server:
        (folder / "config").write_text(f"Host there\n  HostName 127.0.0.1\n  Port {server.port}\n  User me\n")
        known = f"[127.0.0.1]:{server.port} {server.key.get_name()} {server.key.get_base64()}\n"
        (folder / "known_hosts").write_text(known)
        connected = Remote(HostfileEntry("there"))
        yield connected
        connected.close()


def test_run_returns_the_output_and_the_exit_code(host: Remote) -> None:
    assert host.run("echo", limit=20) == Done(3, "said\n", "")


@pytest.mark.parametrize("command", ["dribble", "linger"], ids=["it goes on printing", "it prints no more"])
def test_a_command_that_does_not_end_times_out_and_the_next_one_runs(host: Remote, command: str) -> None:
    began = time.monotonic()
    with pytest.raises(RemoteError, match=f"^{command} did not end within 0.3 s: log in to the host"):
        host.run(command, limit=0.3)
    assert time.monotonic() - began < 10
    assert host.run("echo").code == 3


def test_a_server_that_does_not_accept_a_command_times_out(host: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CONNECT_SECONDS", 0.3)
    with pytest.raises(RemoteError, match=r"127\.0\.0\.1 port \d+ does not answer within 0\.3 s"):
        host.run("never", limit=20)


def test_stop_saves_the_output_that_follows_a_silence(
    host: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = paramiko.Channel.settimeout
    monkeypatch.setattr(  # a minute lasts 0.3 s
        paramiko.Channel, "settimeout", lambda channel, seconds: limit(channel, seconds and seconds / 200)
    )
    monkeypatch.setattr(record, "JOBS", tmp_path / "jobs")
    monkeypatch.setattr(control, "connect", lambda *_: ([host], []))
    monkeypatch.setattr(container, "state", lambda *_, **__: State("running"))
    monkeypatch.setattr(control, "remove_containers", lambda *_: None)
    monkeypatch.setattr(commands, "logs", lambda *_, **__: "print")  # after a second
    running = Record("one", (HostfileEntry("there"),), ("box",), "torchrun", detached=True)
    record.write(running)
    control.stop(running)
    assert record.log_of("one").read_text() == "there | said\n"


@pytest.mark.parametrize(("command", "times"), [("print", 0), ("print and break", 1)])
def test_a_stream_reports_that_the_connection_broke(host: Remote, command: str, times: int) -> None:
    lost: list[bool] = []
    assert list(host.stream(command, lost=lambda: lost.append(True))) == [b"said\n"]
    assert len(lost) == times


def test_a_connection_without_answers_breaks_before_linux_gives_up(host: Remote) -> None:
    transport = host._connection.client.get_transport()
    limit = transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert limit == remote.LOST_SECONDS * 1000


def test_an_idle_connection_is_kept_alive(host: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.run("echo").code == 3
    seen: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(remote, "KEEPALIVE_SECONDS", 0.1)
    monkeypatch.setattr(
        paramiko.ServerInterface, "check_global_request", lambda _self, kind, _message: seen.put(kind)
    )
    idle = Remote(HostfileEntry("there"))
    assert seen.get(timeout=20).startswith("keepalive")
    idle.close()
