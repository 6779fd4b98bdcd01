"""The connections by which the ranks of a ccl group learn that one is gone: attacked, frozen, refused, forged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.containers import RunInImage

# What is noticed at once is raised two seconds later; the rest is for a busy machine.
SOON = 8.0

# The group's store belongs to the script: it sees when a rank says where it listens, and what the others read.
SCRIPT = r"""
import json, os, re, resource, select, signal, socket, struct, subprocess, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
import oneccl_bindings_for_pytorch as package

case, rank = sys.argv[1], dist.get_rank()
said = {"rank": rank}

class Watched(dist.Store):
    def __init__(self, store):
        super().__init__()
        self.store = store
    def set(self, key, value):
        self.store.set(key, value)
        if key.endswith(f"ccl/lifeline/address/{rank}"):
            on_address(value)
        if key.endswith(f"ccl/lifeline/connected/{rank}"):
            on_connected()
    def get(self, key):
        value = self.store.get(key)
        return on_read(value) if key.endswith(f"ccl/lifeline/address/{1 - rank}") else value
    def clone(self): return self
    def check(self, keys): return self.store.check(keys)
    def wait(self, keys, *timeout): return self.store.wait(keys, *timeout)
    def add(self, key, value): return self.store.add(key, value)
    def delete_key(self, key): return self.store.delete_key(key)

on_address = on_connected = lambda *_: None
on_read = lambda value: value
create = package.create
package.create = lambda store, **options: create(store=Watched(store), **options)

def make(seconds=1500):
    begin = time.monotonic()
    group = dist.new_group(backend="ccl", timeout=timedelta(seconds=seconds))
    said["seconds"] = time.monotonic() - begin
    return group

def use(group, late):
    # Where a death is believed in, a call that takes longer than two seconds raises.
    if rank == 1:
        time.sleep(late)
    begin = time.monotonic()
    try:
        number = torch.ones(1000)
        dist.all_reduce(number, group=group)
        said["sum"] = number[0].item()
    except RuntimeError as error:
        said["error"] = str(error).splitlines()[0]
    said["used"] = time.monotonic() - begin

def parse(value):
    host, port, secret = bytes(value).decode().split()
    return (host, int(port)), secret

def attack(value):
    # The silent ones come first.
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    address, _ = parse(value)
    for number in range(1100):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(address)
        clients.append(client)
    time.sleep(0.3)
    for number, client in enumerate(clients[100:]):
        try:
            client.send(b"GET / HTTP/1.1" if number % 2 else b"0123456789abcdef" * 8)
        except OSError:
            pass

def freeze(_):
    subprocess.Popen(["sh", "-c", f"sleep 10; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)

def proxied(value):
    there, secret = parse(value)
    listener = socket.create_server(("127.0.0.1", 0))
    def serve():
        near, far = listener.accept()[0], socket.create_connection(there)
        forged.append(far)
        while True:
            for ready in select.select([near, far], [], [])[0]:
                data = ready.recv(4096)
                if not data:
                    return near.close(), far.close()
                (far if ready is near else near).sendall(data)
    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1 {listener.getsockname()[1]} {secret}".encode()

def sockets():
    names = {fd: os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    return {(fd, name) for fd, name in names.items() if "socket:" in name or "eventfd" in name}

def fork():
    said["made"] = len(sockets() - before)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, str(len(sockets() - before)).encode())
        os._exit(0)
    said["inherited"] = int(os.read(reader, 100))

def options():
    for fd in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(fd)))
            yield tuple(one.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in
                        ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"))
        except OSError:
            pass

if case == "attack":
    clients = []
    on_address = attack
    group = make()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    use(group, 0)
elif case == "frozen":
    if rank == 1:
        on_address = freeze
    else:
        on_read = lambda value: (time.sleep(1), value)[1]
    use(make(16), 4)
elif case == "refused":
    if rank == 0:
        on_read = lambda value: f"127.0.0.1 1 {parse(value)[1]}".encode()
    use(make(), 4)
elif case.startswith("forged"):
    forged = []
    if rank == 0:
        on_read = proxied
    group = make()
    dist.barrier()
    if rank == 0:
        forged[0].sendall({"forged rank": struct.pack("<BIQ", 0, 1000, 0), "forged kind": b"\xff" * 13}[case] * 3)
    use(group, 4)
elif case == "fork":
    before = sockets()
    on_connected = fork
    use(make(), 0)
elif case == "options":
    group = make()
    said["options"] = sorted(set(options()))
elif case == "abort":
    group = make()
    dist.barrier()
    if rank == 2:
        time.sleep(1)
        group._get_backend(torch.device("cpu")).abort()
    else:
        use(group, 0)
    dist.barrier()  # of another group: all are alive
print(json.dumps(said) + "\n", end="", flush=True)
os._exit(0)
"""


@pytest.fixture
def run_case(run_in_image: RunInImage, tmp_path: Path) -> Any:
    """What each rank said, and standard error. Without an agent, which would end all when one is killed."""
    tmp_path.chmod(0o755)
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(case: str, ranks: int = 2, **env: str) -> tuple[dict[int, dict[str, Any]], str]:
        each = f"RANK=$rank LOCAL_RANK=$rank entrypoint run --backend ccl /scripts/script.py '{case}'"
        start = f"for rank in $(seq 0 {ranks - 1}); do {each} & done; wait"
        place = {"WORLD_SIZE": f"{ranks}", "LOCAL_WORLD_SIZE": f"{ranks}", "OMP_NUM_THREADS": "1"}
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        mounts = ("--volume", f"{tmp_path}:/scripts:ro", "--shm-size", "1g")
        every = {**place, **master, **env}
        done = run_in_image("sh", "-c", start, env=every, docker_args=mounts, timeout=150)
        said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return {one["rank"]: one for one in said}, done.stdout + done.stderr

    return run


def warnings(output: str, rank: int) -> list[str]:
    text = f"ccl: rank {rank} has no connection by which a dead rank is noticed"
    return [line for line in output.splitlines() if text in line]


def test_a_thousand_strangers_cost_neither_time_nor_the_lifeline(run_case: Any) -> None:
    said, output = run_case("attack")
    assert said[0]["seconds"] < SOON, said
    assert "rank 1 has ended" in said[0]["error"], output
    assert said[0]["used"] < SOON, said
    assert not warnings(output, 0), output


@pytest.mark.parametrize(("case", "reason"), [("frozen", "no answer in time"), ("refused", "refused")])
def test_both_ends_say_that_there_is_no_connection_and_nobody_is_dead(
    run_case: Any, case: str, reason: str
) -> None:
    said, output = run_case(case)
    for rank in (0, 1):
        (line,) = warnings(output, rank)
        assert reason in line
        assert said[rank].get("sum") == 2, output
    assert said[0]["used"] > 3, "the call was too short to tell"


@pytest.mark.parametrize("case", ["forged rank", "forged kind"])
def test_a_message_that_makes_no_sense_is_ignored_with_one_warning(run_case: Any, case: str) -> None:
    said, output = run_case(case)
    assert [said[rank].get("sum") for rank in (0, 1)] == [2, 2], output
    assert said[0]["used"] > 3, "the call was too short to tell"
    assert output.count("ccl: rank 1 got a message that makes no sense from rank 0") == 1, output


def test_all_ranks_hear_that_one_gave_up_while_all_are_alive(run_case: Any) -> None:
    said, output = run_case("abort", 4)
    assert sorted(said) == [0, 1, 2, 3], output
    for rank in (0, 1, 3):
        assert "rank 2 has given the group up" in said[rank]["error"]
        assert said[rank]["used"] < SOON


def test_a_child_forked_while_the_ranks_connect_keeps_no_connection(run_case: Any) -> None:
    said, output = run_case("fork")
    for rank in (0, 1):
        assert said[rank]["made"] >= 2, output
        assert said[rank]["inherited"] == 0
        assert said[rank]["sum"] == 2


@pytest.mark.parametrize(
    ("value", "expected"), [("2", [2000, 1, 1, 1]), ("4", [4000, 1, 1, 3]), ("3600", [3_600_000, 1440, 720, 3])]
)
def test_after_how_long_a_host_is_unreachable_can_be_chosen(
    run_case: Any, value: str, expected: list[int]
) -> None:
    said, output = run_case("options", CPU_TRAIN_STACK_UNREACHABLE_SECONDS=value)
    for rank in (0, 1):
        assert expected in said[rank]["options"], output


@pytest.mark.parametrize("value", ["1", "3601", "4.5", "ten", ""])
def test_a_wrong_number_of_seconds_is_one_line(run_case: Any, value: str) -> None:
    said, output = run_case("options", CPU_TRAIN_STACK_UNREACHABLE_SECONDS=value)
    assert not said
    found = f"ValueError: ccl: CPU_TRAIN_STACK_UNREACHABLE_SECONDS is '{value}'"
    assert output.count(f"{found}, expected whole seconds from 2 to 3600") == 2, output
