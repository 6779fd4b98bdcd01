"""The output of a cluster's containers, line by line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tooling.cluster.follow import lines


@given(text=st.lists(st.sampled_from([b"a", b"\n", b"bc\n", b"\r", b"\nd"])))
def test_lines_are_complete_regardless_of_the_chunks(text: list[bytes]) -> None:
    expected = b"".join(text)
    found = list(lines(text))
    assert b"".join(found) == expected + (b"" if expected.endswith(b"\n") or not expected else b"\n")
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in found)
