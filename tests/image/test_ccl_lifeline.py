"""The lifeline of a ccl group, which detects dead ranks: attacks, refused connections, frozen ranks, forgeries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import containers

# A detected death is raised after two seconds. The rest is a margin for a busy machine.
SOON = 8.0

# The script wraps the store of the group, to intercept the address that a rank publishes and the one it reads.
SCRIPT = r"""
import json, os, re, resource, select, signal, socket, struct, subprocess, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
import oneccl_bindings_for_pytorch as package

rank = dist.get_rank()
report = {}

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

create = package.create
package.create = lambda store, **options: create(store=Watched(store), **options)

def create_group(seconds=1500):
    begin = time.monotonic()
    group = dist.new_group(backend="ccl", timeout=timedelta(seconds=seconds))
    report["seconds"] = time.monotonic() - begin
    return group

def use(group, late):
    # If a rank is considered dead, a call that takes longer than two seconds raises.
    if rank == 1:
        time.sleep(late)
    begin = time.monotonic()
    try:
        number = torch.ones(1000)
        dist.all_reduce(number, group=group)
        report["sum"] = number[0].item()
    except RuntimeError as error:
        report["error"] = str(error).splitlines()[0]
    report["used"] = time.monotonic() - begin

def parse(value):
    host, port, tokens = bytes(value).decode().split()
    return (host, int(port)), tokens

def attack(value):
    # The clients that send nothing connect first.
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
    target, tokens = parse(value)
    listener = socket.create_server(("127.0.0.1", 0))
    def serve():
        near, far = listener.accept()[0], socket.create_connection(target)
        forged.append(far)
        while True:
            for ready in select.select([near, far], [], [])[0]:
                data = ready.recv(4096)
                if not data:
                    return near.close(), far.close()
                (far if ready is near else near).sendall(data)
    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1 {listener.getsockname()[1]} {tokens}".encode()

def sockets():
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
        except OSError:  # already closed
            pass
    return {(fd, name) for fd, name in found if "socket:" in name or "eventfd" in name}

def fork():
    report["opened"] = len(sockets() - before)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, str(len(sockets() - before)).encode())
        os._exit(0)
    report["inherited"] = int(os.read(reader, 100))

def options():
    for fd in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(fd)))
            yield tuple(one.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in
                        ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"))
        except OSError:
            pass

def case_attack():
    global on_address
    on_address = attack
    group = create_group()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    use(group, 0)

def case_frozen():
    global on_address, on_read
    if rank == 1:
        on_address = freeze
    else:
        on_read = lambda value: (time.sleep(1), value)[1]
    use(create_group(16), 4)

def case_refused():
    global on_read
    if rank == 0:
        on_read = lambda value: f"127.0.0.1 1 {parse(value)[1]}".encode()
    use(create_group(), 4)

def forge(message):
    global on_read
    if rank == 0:
        on_read = proxied
    group = create_group()
    dist.barrier()
    if rank == 0:
        forged[-1].sendall(message * 3)
    use(group, 4)

def case_rank():
    forge(struct.pack("<BIQ", 0, 1000, 0))

def case_kind():
    forge(b"\xff" * 13)

def case_fork():
    global on_connected
    on_connected = fork
    before.update(sockets())
    use(create_group(), 0)

def case_seconds():
    for value in ("2", "4", "3600", "1", "3601", "4.5", "ten", ""):
        os.environ["CPU_TRAIN_STACK_UNREACHABLE_SECONDS"] = value
        try:
            group = create_group()
            report[value] = sorted(set(options()))
        except ValueError as error:
            report[value] = str(error)
    dist.barrier()  # rank 0 serves the store: it must not exit first

def case_abort():
    group = create_group()
    dist.barrier()
    if rank == 2:
        time.sleep(1)
        group._get_backend(torch.device("cpu")).abort()
    else:
        use(group, 0)
    dist.barrier()  # of another group: all ranks are alive

clients, forged, before = [], [], set()
for case in sys.argv[1:]:
    on_address = on_connected = lambda *_: None
    on_read = lambda value: value
    report = {"case": case, "rank": rank}
    globals()[f"case_{case}"]()
    print(json.dumps(report) + "\n", end="", flush=True)
os._exit(0)
"""

Reports = dict[str, dict[int, dict[str, Any]]]


def run_cases(image: str, folder: Path, cases: str, ranks: int = 2) -> tuple[Reports, str]:
    """The report of each rank in each case, and all output. No agent ends the ranks when one is killed."""
    folder.chmod(0o755)
    (folder / "script.py").write_text(SCRIPT)
    each = f"RANK=$rank LOCAL_RANK=$rank entrypoint run --backend ccl /scripts/script.py {cases}"
    start = f"for rank in $(seq 0 {ranks - 1}); do {each} & done; wait"
    place = {"WORLD_SIZE": f"{ranks}", "LOCAL_WORLD_SIZE": f"{ranks}", "OMP_NUM_THREADS": "1"}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    mounts = ("--volume", f"{folder}:/scripts:ro", "--shm-size", "1g")
    done = containers.run(image, "sh", "-c", start, env={**place, **master}, docker_args=mounts, timeout=200)
    reports: Reports = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            report = json.loads(line)
            reports.setdefault(report["case"], {})[report["rank"]] = report
    return reports, done.stdout + done.stderr


@pytest.fixture(scope="module")
def survived(image: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reports, str]:
    """The cases in which no rank dies."""
    return run_cases(image, tmp_path_factory.mktemp("lifeline"), "refused rank kind fork seconds")


def warnings(output: str, rank: int, reason: str) -> list[str]:
    text = f"ccl: rank {rank} has no lifeline connection, so a dead rank may go unnoticed"
    return [line for line in output.splitlines() if text in line and reason in line]


def test_a_thousand_unknown_clients_neither_delay_nor_break_the_lifeline(image: str, tmp_path: Path) -> None:
    reports, output = run_cases(image, tmp_path, "attack")
    assert reports["attack"][0]["seconds"] < SOON, output
    assert "rank 1 has ended" in reports["attack"][0]["error"], output
    assert reports["attack"][0]["used"] < SOON, output
    assert not warnings(output, 0, ""), output


def test_a_frozen_rank_neither_blocks_the_group_nor_counts_as_dead(image: str, tmp_path: Path) -> None:
    reports, output = run_cases(image, tmp_path, "frozen")
    check_both_warned_and_worked(reports["frozen"], output, "the handshake timed out")


def test_both_ends_report_a_connection_that_was_refused(survived: tuple[Reports, str]) -> None:
    reports, output = survived
    check_both_warned_and_worked(reports["refused"], output, "refused")


def check_both_warned_and_worked(reports: dict[int, dict[str, Any]], output: str, reason: str) -> None:
    for rank in (0, 1):
        assert len(warnings(output, rank, reason)) == 1, output
        assert reports[rank].get("sum") == 2, output
    assert reports[0]["used"] > 3, "the call was too short to prove anything"


@pytest.mark.parametrize("forged", ["rank", "kind"])
def test_an_invalid_message_is_ignored(survived: tuple[Reports, str], forged: str) -> None:
    reports, output = survived
    assert [reports[forged][rank].get("sum") for rank in (0, 1)] == [2, 2], output
    assert reports[forged][0]["used"] > 3, "the call was too short to prove anything"
    # One line in each of the two groups, for any number of invalid messages.
    assert output.count("ccl: rank 1 received an invalid message from rank 0") == 2, output


def test_an_abort_is_reported_to_all_ranks_while_all_are_alive(image: str, tmp_path: Path) -> None:
    reports, output = run_cases(image, tmp_path, "abort", ranks=4)
    assert sorted(reports["abort"]) == [0, 1, 2, 3], output
    for rank in (0, 1, 3):
        assert "rank 2 has given the group up" in reports["abort"][rank]["error"]
        assert reports["abort"][rank]["used"] < SOON


def test_a_child_forked_while_the_ranks_connect_inherits_no_connection(survived: tuple[Reports, str]) -> None:
    reports, output = survived
    for rank in (0, 1):
        assert reports["fork"][rank]["opened"] >= 2, output
        assert reports["fork"][rank]["inherited"] == 0
        assert reports["fork"][rank]["sum"] == 2


@pytest.mark.parametrize(
    ("value", "expected"), [("2", [2000, 1, 1, 1]), ("4", [4000, 1, 1, 3]), ("3600", [3_600_000, 1440, 720, 3])]
)
def test_the_time_until_a_host_is_unreachable_is_configurable(
    survived: tuple[Reports, str], value: str, expected: list[int]
) -> None:
    reports, output = survived
    for rank in (0, 1):
        assert expected in reports["seconds"][rank][value], output


@pytest.mark.parametrize("value", ["1", "3601", "4.5", "ten", ""])
def test_an_invalid_number_of_seconds_is_an_error(survived: tuple[Reports, str], value: str) -> None:
    reports, output = survived
    found = f"ccl: CPU_TRAIN_STACK_UNREACHABLE_SECONDS is '{value}'"
    for rank in (0, 1):
        error = reports["seconds"][rank][value]
        assert error == f"{found}, expected an integer number of seconds from 2 to 3600", output
