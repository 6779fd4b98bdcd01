"""The interface by route, with this machine's real sockets."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.doctor.network import Master, reach
from cpu_train_stack.machine import network


def own_address() -> str:
    """This machine's address on some network other than loopback."""
    for address in itertools.chain.from_iterable(network.interfaces().values()):
        if not network.is_loopback(address) and ":" not in address:
            return address
    pytest.skip("this machine has no IPv4 interface but loopback")


def test_one_node_meets_on_loopback() -> None:
    assert network.choose("127.0.0.1", several_nodes=False).interface == "lo"


def test_the_route_to_an_own_address_is_the_interface_that_holds_it() -> None:
    address = own_address()
    name = network.choose(address, several_nodes=True).interface
    assert address in network.interfaces()[name]
    assert name != "lo"


@pytest.mark.parametrize("master", ["127.0.0.1", "127.0.1.1", "localhost"])
def test_loopback_is_refused_for_several_nodes(master: str) -> None:
    with pytest.raises(UsageError, match=r"loopback \(lo\), but the ranks are on several nodes"):
        network.choose(master, several_nodes=True)


def test_a_host_name_that_etc_hosts_maps_to_loopback_is_refused_on_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # /etc/hosts cannot be changed for a test; the resolver's answer for Debian's line can.
    answer = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    with pytest.raises(UsageError, match=r"'node-a' is 127\.0\.1\.1 on .*/etc/hosts"):
        network.choose("node-a", several_nodes=True)


def test_the_users_interface_takes_precedence_over_the_route() -> None:
    address = own_address()
    name = next(name for name, held in network.interfaces().items() if address in held)
    assert network.choose("127.0.1.1", several_nodes=True, wanted=name).interface == name


def test_the_users_unknown_interface_is_refused_with_the_choices() -> None:
    with pytest.raises(UsageError, match=r"'nope0', expected one of .*lo"):
        network.choose("127.0.0.1", several_nodes=False, wanted="nope0")


def test_the_users_loopback_is_refused_for_several_nodes() -> None:
    with pytest.raises(UsageError, match="GLOO_SOCKET_IFNAME=lo, which is loopback"):
        network.choose(own_address(), several_nodes=True, wanted="lo")


def test_a_name_that_does_not_resolve_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"'no-such-host\.invalid' does not resolve") as error:
        network.resolve("no-such-host.invalid")
    assert "\n" not in str(error.value)


def test_a_name_that_no_resolver_accepts_is_one_line() -> None:
    with pytest.raises(UsageError, match="does not resolve"):
        network.resolve("a" * 70 + ".invalid")


def test_resolving_is_retried_until_the_name_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = socket.getaddrinfo
    calls = []

    def late(host: str, *args: object, **kwargs: object) -> object:
        calls.append(host)
        if len(calls) < 3:
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return real("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(network, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(socket, "getaddrinfo", late)
    assert network.resolve("late-host", deadline_seconds=10) == "127.0.0.1"
    assert len(calls) == 3


def test_resolving_gives_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_RETRY_SECONDS", 0.1)
    start = time.monotonic()
    with pytest.raises(UsageError):
        network.resolve("no-such-host.invalid", deadline_seconds=0.5)
    assert 0.35 < time.monotonic() - start < 30


def test_an_address_of_no_interface_is_refused_with_the_fix() -> None:
    with pytest.raises(UsageError, match=r"no interface has 10\.9\.9\.9.*set GLOO_SOCKET_IFNAME"):
        network.interface_of("10.9.9.9", {"eth0": ["10.0.0.1"]})


def test_every_address_of_an_interface_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {
        "eth0": [(socket.AF_INET, "10.7.0.1"), (socket.AF_INET, "10.8.0.1"), (socket.AF_INET6, "fe80::5%eth0")],
        "tun0": [(socket.AF_PACKET, "")],
        "eth0:1": [(socket.AF_INET, "10.7.0.2")],
    }
    entries = {
        name: [SimpleNamespace(family=family, address=address) for family, address in addresses]
        for name, addresses in held.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: entries)
    table = network.interfaces()
    assert table == {"eth0": ["10.7.0.1", "10.8.0.1", "10.7.0.2", "fe80::5"], "tun0": []}
    assert network.interface_of("10.7.0.2", table) == "eth0"


def test_a_secondary_address_is_this_hosts_although_packets_to_it_have_another_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "interfaces", lambda: {"eth0": ["10.7.0.1", "10.7.0.2"]})
    assert network.is_own("10.7.0.2")
    assert network.is_own("127.0.0.1")
    assert not network.is_own("10.7.0.9")
    assert [check.detail for check in reach(Master("10.7.0.2", 29500, True))] == ["10.7.0.2 is this node"]


def test_ipv4_is_preferred_if_a_name_has_both(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [
        (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("fd00::5", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("10.0.0.5", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    assert network.resolve("both") == "10.0.0.5"


def test_wait_for_port_returns_once_a_process_listens() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=f"no process listens at 127.0.0.1:{port} after 0.1 s"):
            network.wait_for_port("127.0.0.1", port, 0.1)
        begin = threading.Timer(0.2, listener.listen)
        begin.start()
        network.wait_for_port("127.0.0.1", port, 30)
        begin.join()
