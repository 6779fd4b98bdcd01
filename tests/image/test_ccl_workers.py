"""Several oneCCL workers for each rank (CCL_WORKER_COUNT), with and without cores to spare."""

import json
from pathlib import Path

import pytest

from tests.containers import RunInImage

SHARED = ("--shm-size", "1g")

CALLS = """
import torch, torch.distributed as dist
rank, size = dist.get_rank(), dist.get_world_size()
for elements in (1, 5, 300_000):
    for type in (torch.float32, torch.uint8):
        own = torch.full((elements * size,), rank + 1).to(type)
        for root in range(size):
            received = own.clone()
            dist.broadcast(received, root)
            assert (received == root + 1).all()
        highest = own.clone()
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        assert (highest == size).all()
        exchanged = torch.empty_like(own)
        dist.all_to_all_single(exchanged, own)
        assert exchanged[::elements].tolist() == list(range(1, size + 1))
        gathered = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(gathered, own)
        assert [int(each[0]) for each in gathered] == list(range(1, size + 1))
    dist.barrier()
    received = torch.empty(elements)
    sent = dist.isend(torch.full((elements,), float(rank)), (rank + 1) % size)
    dist.recv(received, (rank - 1) % size)
    sent.wait()
    assert (received == (rank - 1) % size).all()
found = [None] * size
dist.all_gather_object(found, {"rank": rank})
assert [each["rank"] for each in found] == list(range(size))
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))(torch.ones(2, 3)).sum().backward()
print(f"rank {rank} is done\\n", end="", flush=True)
"""
GUIDE = {"CCL_WORKER_COUNT": "2", "CCL_WORKER_AFFINITY": "auto", "KMP_HW_SUBSET": "1T"}


@pytest.mark.parametrize(
    ("launcher", "environ", "cpus"),
    [
        (("launch", "--nproc-per-node=2", "--"), GUIDE, ""),
        (("mpirun", "-n", "2", "entrypoint"), GUIDE, ""),
        (("launch", "--nproc-per-node=3", "--"), {"CCL_WORKER_COUNT": "3"}, "0"),
        (("launch", "--nproc-per-node=2", "--"), {"CCL_WORKER_COUNT": "2", "CCL_WORKER_OFFLOAD": "1"}, ""),
    ],
    ids=["as in Intel's guide", "mpirun", "one core for three ranks", "threads on the cores that compute"],
)
def test_all_calls_complete_with_several_workers(
    run_in_image: RunInImage, script: Path, launcher: tuple[str, ...], environ: dict[str, str], cpus: str
) -> None:
    script.write_text(CALLS)
    docker_args = (*SHARED, "--volume", f"{script.parent}:/scripts:ro", *(("--cpuset-cpus", cpus) if cpus else ()))
    command = (*launcher, "run", "--backend", "ccl", "--timeout", "60", "/scripts/script.py")
    done = run_in_image(*command, env=environ, docker_args=docker_args)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is done") == (3 if cpus else 2)


def test_the_doctor_tries_what_the_workers_carry(run_in_image: RunInImage) -> None:
    done = run_in_image("doctor", "--json", env={"CCL_WORKER_COUNT": "2"}, docker_args=SHARED)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["allreduce ccl"]["status"] == "ok", checks
    assert "shared memory" in checks["allreduce ccl"]["detail"]
