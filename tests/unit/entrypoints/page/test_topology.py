"""The picture of a node's cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cpu_train_stack.page.blocks import Drawing
from cpu_train_stack.records import job as records
from cpu_train_stack.records.job import RecordedJob
from cpu_train_stack.records.record import Start
from cpu_train_stack.report import machine
from tests import synthetic_records


def drawings(job: RecordedJob) -> list[Drawing]:
    return [block for block in machine.what_ran(job) if isinstance(block, Drawing)]


def two_sockets(start: Start) -> Start:
    """Of each socket, a rank computes on two cores of four, and oneCCL's worker has the third one."""
    cores = [
        {"cpus": [core, core + 8], "siblings": [core, core + 8], "socket": core // 4, "node": core // 4}
        for core in range(8)
    ]
    nodes = [{"number": number, "cpus": [], "memory_bytes": 64 << 30} for number in range(2)]
    first = 4 * start.local_rank
    return replace(
        start,
        cores=[first, first + 1, first + 8, first + 9],
        plan={"ccl_worker_cores": [first + 2]},
        topology={"cores": cores, "nodes": nodes} if start.local_rank == 0 else {},
    )


def test_nodes_that_look_the_same_are_drawn_once(tmp_path: Path) -> None:
    job = records.read(synthetic_records.write(tmp_path, world_size=6, steps=12, change=two_sockets))
    (drawing,) = drawings(job)
    assert drawing.title == "Node 0 (node0), and 2 nodes like it"
    assert drawing.alternative == (
        "8 cores on 2 sockets and 2 NUMA nodes. Rank 0: CPUs 0-1,8-9. Rank 1: CPUs 4-5,12-13. "
        "oneCCL's workers: CPUs 2,6 (with a line below the number). Unused: 2 cores (dashed)."
    )
    looks = [shape.look for shape in drawing.shapes]
    assert [looks.count(look) for look in ("socket", "numa", "core", "core worker", "core unused")] == [
        2,
        2,
        4,
        2,
        2,
    ]
    assert all(shape.x + shape.width <= drawing.width for shape in drawing.shapes)
    assert all(shape.y + shape.height <= drawing.height for shape in drawing.shapes)


def test_nodes_that_differ_are_drawn_each(tmp_path: Path) -> None:
    def change(start: Start) -> Start:
        found = two_sockets(start)
        return found if start.node_rank == 0 else replace(found, cores=found.cores[:2])

    job = records.read(synthetic_records.write(tmp_path, world_size=4, steps=12, change=change))
    assert [one.title for one in drawings(job)] == ["Node 0 (node0)", "Node 1 (node1)"]


def test_a_job_without_topology_has_no_picture(tmp_path: Path) -> None:
    job = records.read(
        synthetic_records.write(tmp_path, steps=12, change=lambda start: replace(start, topology={}))
    )
    assert drawings(job) == []


def test_ranks_that_srun_placed_in_turn_are_drawn_on_their_own_nodes(tmp_path: Path) -> None:
    def cyclic(start: Start) -> Start:
        return two_sockets(replace(start, local_rank=start.rank // 2, node_rank=start.rank % 2))

    job = records.read(synthetic_records.write(tmp_path, world_size=4, steps=12, change=cyclic))
    (drawing,) = drawings(job)
    assert "Rank 0: CPUs 0-1,8-9. Rank 2: CPUs 4-5,12-13." in drawing.alternative
    assert {shape.text for shape in drawing.shapes if shape.look == "core-number"} == {"0", "2"}
