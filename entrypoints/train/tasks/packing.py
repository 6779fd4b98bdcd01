"""Several short rows in one long one, so that little of it is padding. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Sequence


def bins(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Which rows share a sequence: each row, longest first, goes where it leaves the least room.

    Rows longer than `capacity` are an error of the caller. The same lengths give the same bins on every rank.
    """
    filled: list[list[int]] = []
    rooms: list[int] = []  # the distinct amounts of room that some bin has, sorted
    with_room: dict[int, list[int]] = {}
    for row in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
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
            filled.append([row])
        left = room - length
        if not with_room.get(left):
            with_room[left] = []
            bisect.insort(rooms, left)
        with_room[left].append(number)
    return filled
