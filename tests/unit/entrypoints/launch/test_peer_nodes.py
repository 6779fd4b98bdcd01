"""What the agents of the nodes tell each other at the end of a job, in a store of one process."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from cpu_train_stack.launch.elastic_agent import FailedElsewhereError, PeerNodes


class Store:
    """As much of torch's store as PeerNodes uses."""

    def __init__(self) -> None:
        self._lock, self._counts, self._texts = threading.Lock(), Counter[str](), dict[str, str]()

    def set(self, key: str, value: str) -> None:
        self._texts[key] = value
        self._counts[key] = int(value) if value.isdigit() else 0

    def add(self, key: str, number: int) -> int:
        with self._lock:
            self._counts[key] += number
            return self._counts[key]

    def get(self, key: str) -> bytes:
        return self._texts[key].encode()


def peers(count: int = 2, silent_seconds: float = 60.0) -> list[PeerNodes]:
    store = Store()
    return [PeerNodes(store, rank, count, silent_seconds) for rank in range(count)]


def test_a_node_waits_until_the_ranks_of_all_nodes_have_succeeded() -> None:
    first, second = peers()
    assert [first.all_succeeded(), first.all_succeeded()] == [False, False]
    assert [second.all_succeeded(), first.all_succeeded()] == [True, True]


def test_a_node_ends_with_the_code_of_ranks_that_have_failed_elsewhere() -> None:
    first, second = peers()
    assert not second.all_succeeded()
    first.fail(3)
    with pytest.raises(FailedElsewhereError, match="the ranks of node 0 have failed") as raised:
        second.all_succeeded()
    assert raised.value.exit_code == 3


def test_a_node_that_writes_nothing_is_lost() -> None:
    first, _ = peers(silent_seconds=0.2)
    assert not first.all_succeeded()
    time.sleep(0.3)
    with pytest.raises(FailedElsewhereError, match="node 1 has not responded"):
        first.all_succeeded()


def test_node_0_leaves_before_the_other_nodes() -> None:
    """An operator may delete all other pods when the first one ends. The pod of node 0 has rank 0's log."""
    left: dict[int, float] = {}

    def leave(number: int, node: PeerNodes) -> None:
        node.leave()
        left[number] = time.monotonic()

    threads = [threading.Thread(target=leave, args=one) for one in enumerate(peers())]
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert left[1] - left[0] > 0.9
