"""The connection to rank 0's node, over real sockets of this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from cpu_train_stack.cli.checks import CheckStatus
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.doctor import network
from cpu_train_stack.doctor.network import Master
from cpu_train_stack.placement.detect import DistributedEnvironment

TABLE = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.2"]}
SINGLE = DistributedEnvironment()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection: this side's end and the other's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
        with here, there:
            yield here, there


def reading(offset: float, pin: str = "2.13") -> network.Reading:
    return network.Reading(offset=offset, error=0.001, pin=pin, host="node-0")


def test_another_doctor_reports_its_time_and_pin(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPU_TRAIN_STACK_PIN", "2.13")
    here, there = pair
    thread = threading.Thread(target=network.answer, args=(there,))
    thread.start()
    measured = network.measure_clock(here)
    here.close()
    thread.join(10)
    assert not thread.is_alive()
    assert measured is not None
    assert (measured.pin, measured.host) == ("2.13", socket.gethostname())
    assert abs(measured.offset) <= measured.error + 0.001


def test_a_clock_with_an_offset_is_measured(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair

    def answer() -> None:
        with there.makefile("rw") as stream:
            stream.write(f'{{"{network.GREETING}": "node-0", "pin": "2.13"}}\n')
            stream.flush()
            while stream.readline():
                stream.write(f"{time.time() + 3600}\n")
                stream.flush()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    measured = network.measure_clock(here)
    assert measured is not None
    assert measured.offset == pytest.approx(3600, abs=1)
    assert network.skew(measured).status is CheckStatus.WARNING


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400\r\n\n", b"[]\n", b"\x00\xff\n", b"7\n"], ids=repr)
def test_any_other_server_is_not_measured_and_receives_nothing(
    pair: tuple[socket.socket, socket.socket], said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "ANSWER_SECONDS", 0.2)
    here, there = pair
    there.sendall(said)
    assert network.measure_clock(here) is None
    here.close()
    assert there.recv(100) == b""


@pytest.mark.parametrize(
    ("greeting", "answer"),
    [
        (f'{{"{network.GREETING}": "h"}}', b"1.0\n"),
        (f'"{network.GREETING}"', b"1.0\n"),
        (f'["{network.GREETING}"]', b"1.0\n"),
        ("[" * 990, b"1.0\n"),
        (f'{{"{network.GREETING}": "h", "pin": "2.13"}}', b"nan\n"),
    ],
)
def test_a_greeting_of_another_shape_is_not_of_a_doctor(
    greeting: str, answer: bytes, pair: tuple[socket.socket, socket.socket]
) -> None:
    here, there = pair
    there.sendall(f"{greeting}\n".encode())

    def reply() -> None:
        with contextlib.suppress(OSError):  # the test closes it
            while there.recv(100):
                there.sendall(answer)

    threading.Thread(target=reply, daemon=True).start()
    assert network.measure_clock(here) is None
    here.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("offset", "status"),
    [(0.9, CheckStatus.OK), (-1.0005, CheckStatus.OK), (1.1, CheckStatus.WARNING), (-5, CheckStatus.WARNING)],
)
def test_an_offset_of_more_than_a_second_beyond_the_error_is_a_warning(offset: float, status: CheckStatus) -> None:
    assert network.skew(reading(offset)).status is status


def test_another_pin_on_the_master_is_an_error() -> None:
    assert network.same_pin(reading(0), "node-0:29500", "2.13").status is CheckStatus.OK
    check = network.same_pin(reading(0, "2.8"), "node-0:29500", "2.13")
    assert check.status is CheckStatus.ERROR
    assert "pin 2.8, expected pin 2.13 as here" in check.detail


def test_a_missing_interface_is_an_error_that_lists_the_existing_ones() -> None:
    check = network.interface("eth9", None, TABLE)
    assert check.status is CheckStatus.ERROR
    assert "eth0 10.0.0.2" in check.detail


def test_loopback_is_an_error_only_with_several_nodes() -> None:
    several = network.interface("", Master("127.0.0.1", 29500, several_nodes=True), TABLE)
    assert several.status is CheckStatus.ERROR
    assert "loopback (lo)" in several.detail
    assert network.interface("", Master("127.0.0.1", 29500, several_nodes=False), TABLE).status is CheckStatus.OK


def test_an_interface_off_the_route_is_a_warning() -> None:
    check = network.interface("eth0", Master("127.0.0.1", 29500, several_nodes=True), TABLE)
    assert check.status is CheckStatus.WARNING
    assert "the route to 127.0.0.1 (127.0.0.1) is lo" in check.detail


def test_a_name_that_does_not_resolve_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "RESOLVE_SECONDS", 0.0)
    (check,) = network.examine_network(Master("no.invalid", 29500, several_nodes=True), {})
    assert (check.name, check.status) == ("master", CheckStatus.ERROR)
    assert "'no.invalid' does not resolve" in check.detail
    assert check.fix.startswith("correct it")


@pytest.mark.parametrize(
    ("flag", "environ", "environment", "expected"),
    [
        (None, {}, SINGLE, None),
        ("node-0", {}, SINGLE, Master("node-0", 29500, True)),
        (None, {"MASTER_ADDR": "node-0"}, SINGLE, Master("node-0", 29500, False)),
        (
            None,
            {},
            DistributedEnvironment(world_size=2, master_addr="node-1", master_port=1234),
            Master("node-1", 1234, True),
        ),
    ],
    ids=["none", "flag", "variable", "launcher"],
)
def test_the_master_comes_from_the_flag_the_variable_or_the_launcher(
    flag: str | None, environ: dict[str, str], environment: DistributedEnvironment, expected: Master | None
) -> None:
    assert network.wanted_master(flag, None, environment, environ) == expected


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on port {port}"):
            network.serve(port)


def test_a_peer_that_is_no_doctor_ends_its_connection_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as here:
        here.sendall(b"\xff\xfe\n")
        network.answer(server.accept()[0])
