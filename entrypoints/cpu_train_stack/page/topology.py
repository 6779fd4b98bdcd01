"""A picture of each node: sockets, NUMA nodes and cores, and which rank uses each core. Pure.

A core is a square with the number of its rank, so that the color is not needed to read the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cpu_train_stack.cli.numbers import count
from cpu_train_stack.page import texts
from cpu_train_stack.page.blocks import Drawing, Shape
from cpu_train_stack.page.texts import GIBIBYTE

# In pixels.
_CORE, _GAP, _PADDING, _TITLE = 22, 3, 10, 20
_CORES_PER_ROW = 16
_SOCKETS_PER_ROW = 2


@dataclass(frozen=True)
class NodePicture:
    """One node. `topology`: a machine.facts.Topology as JSON. `ranks`: by local rank. `users`: local rank by CPU.

    `workers`: the same for the CPUs of oneCCL's workers. Without `users`, the picture shows the cores only.
    """

    name: str
    topology: Mapping[str, Any]
    ranks: Mapping[int, int] = field(default_factory=dict)
    users: Mapping[int, int] = field(default_factory=dict)
    workers: Mapping[int, int] = field(default_factory=dict)

    @property
    def looks(self) -> str:
        """The same for nodes with the same picture."""
        sizes = [[one.get("number"), one.get("cpus")] for one in self.topology.get("nodes", ())]
        return repr((self.topology.get("cores"), sizes, sorted(self.users.items()), sorted(self.workers.items())))


def drawings(nodes: Iterable[NodePicture]) -> list[Drawing]:
    """One picture for all nodes that look the same."""
    groups: dict[str, list[NodePicture]] = {}
    for node in nodes:
        groups.setdefault(node.looks, []).append(node)
    return [_drawing(group) for group in groups.values()]


def _drawing(group: Sequence[NodePicture]) -> Drawing:
    node = group[0]
    shapes: list[Shape] = []
    x = y = height = width = 0.0
    for place, (socket, parts) in enumerate(_by_socket(node).items()):
        if place and place % _SOCKETS_PER_ROW == 0:
            x, y, height = 0.0, y + height + _PADDING, 0.0
        box = _socket(node, socket, parts)
        shapes += [_moved(shape, x, y) for shape in box]
        x += box[0].width + _PADDING
        height = max(height, box[0].height)
        width = max(width, x - _PADDING)
    more = f", and {count(len(group) - 1, 'node')} like it" if len(group) > 1 else ""
    return Drawing(f"{node.name}{more}", width + 2, y + height + 2, shapes, _words(node))


def _by_socket(node: NodePicture) -> dict[int, dict[int, list[Mapping[str, Any]]]]:
    """The cores by socket and NUMA node."""
    found: dict[int, dict[int, list[Mapping[str, Any]]]] = {}
    for core in node.topology["cores"]:
        found.setdefault(core.get("socket", 0), {}).setdefault(core.get("node", 0), []).append(core)
    return dict(sorted(found.items()))


def _socket(node: NodePicture, socket: int, parts: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[Shape]:
    """A box with its NUMA nodes below each other. The first shape is the box."""
    shapes: list[Shape] = [Shape(_PADDING, _TITLE - 5.0, look="socket-title", text=f"socket {socket}")]
    y, width = float(_TITLE + 4), 0.0
    memory = {one.get("number"): one.get("memory_bytes", 0) for one in node.topology.get("nodes", ())}
    for numa, cores in sorted(parts.items()):
        columns = max(min(len(cores), _CORES_PER_ROW), 6)
        rows = -(-len(cores) // _CORES_PER_ROW)
        wide = columns * (_CORE + _GAP) - _GAP + 2 * _PADDING
        high = rows * (_CORE + _GAP) - _GAP + _TITLE + _PADDING + 4
        size = f", {memory[numa] / GIBIBYTE:.0f} GiB" if memory.get(numa) else ""
        shapes.append(Shape(_PADDING, y, wide, high, "numa"))
        shapes.append(Shape(2 * _PADDING, y + _TITLE - 5.0, look="numa-title", text=f"NUMA node {numa}{size}"))
        for place, core in enumerate(cores):
            row, column = divmod(place, _CORES_PER_ROW)
            left = 2 * _PADDING + column * (_CORE + _GAP)
            shapes += _core(node, core, left, y + _TITLE + 2 + row * (_CORE + _GAP))
        y += high + _PADDING
        width = max(width, wide)
    return [Shape(1, 1, width + 2 * _PADDING, y, "socket"), *shapes]


def _core(node: NodePicture, core: Mapping[str, Any], x: float, y: float) -> list[Shape]:
    cpus = core.get("cpus", ())
    local = next((node.users[cpu] for cpu in cpus if cpu in node.users), None)
    worker = next((node.workers[cpu] for cpu in cpus if cpu in node.workers), None)
    where = texts.cpus(cpus)
    user = local if local is not None else worker
    if not node.users:
        return [Shape(x, y, _CORE, _CORE, "core plain", title=where)]
    if user is None:
        return [Shape(x, y, _CORE, _CORE, "core unused", title=f"{where}: unused")]
    rank = node.ranks[user]
    use = f"rank {rank}" if local is not None else f"oneCCL's worker of rank {rank}"
    look = "core" if local is not None else "core worker"
    return [
        Shape(x, y, _CORE, _CORE, look, color=user, title=f"{where}: {use}"),
        Shape(
            x + _CORE / 2, y + _CORE / 2 + 4, look=f"{look}-number".replace(" ", "-"), text=str(rank), color=user
        ),
    ]


def _words(node: NodePicture) -> str:
    """The picture in words."""
    cores = node.topology["cores"]
    sockets = {core.get("socket", 0) for core in cores}
    numa = {core.get("node", 0) for core in cores}
    by_rank: dict[int, set[int]] = {}
    for cpu, local in node.users.items():
        by_rank.setdefault(local, set()).add(cpu)
    used = set(node.users) | set(node.workers)
    unused = sum(not used & set(core.get("cpus", ())) for core in cores)
    parts = [
        f"{count(len(cores), 'core')} on {count(len(sockets), 'socket')} and {count(len(numa), 'NUMA node')}.",
        *(f"Rank {node.ranks[local]}: {texts.cpus(cpus)}." for local, cpus in sorted(by_rank.items())),
    ]
    if node.workers:
        parts.append(f"oneCCL's workers: {texts.cpus(node.workers)} (with a line below the number).")
    if unused and node.users:
        parts.append(f"Unused: {count(unused, 'core')} (dashed).")
    return " ".join(parts)


def _moved(shape: Shape, x: float, y: float) -> Shape:
    return replace(shape, x=shape.x + x, y=shape.y + y)
