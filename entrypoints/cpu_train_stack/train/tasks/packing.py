"""Packing: several short rows share one sequence, which reduces padding. Pure."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Sequence

import numpy


def bins(lengths: Sequence[int], capacity: int) -> list[array[int]]:
    """The rows of each sequence, by best-fit decreasing: rows from long to short, each into the fullest bin with
    room.

    Raises ValueError for a row longer than `capacity`. The same lengths give the same bins on every rank.
    """
    filled: list[array[int]] = []
    rooms: list[int] = []  # the distinct free capacities of all bins, sorted
    with_room: dict[int, list[int]] = {}
    for row in map(int, numpy.argsort(-numpy.asarray(lengths, dtype=numpy.int32), kind="stable")):
        length = lengths[row]
        if length > capacity:
            raise ValueError(f"row {row} has {length} tokens, a sequence holds {capacity}")
        place = bisect.bisect_left(rooms, length)
        if place < len(rooms):
            room = rooms[place]
            number = with_room[room].pop()
            if not with_room[room]:
                rooms.pop(place)
            filled[number].append(row)
        else:
            room, number = capacity, len(filled)
            filled.append(array("i", [row]))
        left = room - length
        if not with_room.get(left):
            with_room[left] = []
            bisect.insort(rooms, left)
        with_room[left].append(number)
    return filled
