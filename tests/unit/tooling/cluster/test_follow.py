"""The output of a cluster's containers, line by line."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tooling.closed_pipe import ClosedPipe
from tooling.cluster import follow
from tooling.cluster.follow import lines
from tooling.cluster.nodes import SERVICE_LABEL


@given(text=st.lists(st.sampled_from([b"a", b"\n", b"bc\n", b"\r", b"\nd"])))
def test_lines_are_complete_regardless_of_the_chunks(text: list[bytes]) -> None:
    expected = b"".join(text)
    found = list(lines(text))
    assert b"".join(found) == expected + (b"" if expected.endswith(b"\n") or not expected else b"\n")
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in found)


class _Container:
    """A container that has printed two lines and ended."""

    status = "exited"

    def __init__(self, name: str) -> None:
        self.name, self.labels = name, {SERVICE_LABEL: name}

    def logs(self, **_options: bool) -> Iterator[bytes]:
        yield b"1\n2\n"

    def reload(self) -> None: ...


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> str:
    containers = [_Container("node-0"), _Container("node-1")]
    client = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: containers), close=lambda: None)
    monkeypatch.setattr(follow, "connect", lambda _endpoint: client)
    return "unix:///none"


def test_the_log_is_complete_although_nobody_reads_standard_output(engine: str, tmp_path: Path) -> None:
    with follow.following(engine, "project", tmp_path / "log", ClosedPipe()):
        pass
    expected = [f"node-{node} | {line}" for node in range(2) for line in (1, 2)]
    assert sorted((tmp_path / "log").read_text().splitlines()) == expected


@pytest.mark.timeout(20)
def test_following_ends_when_nobody_reads_standard_output(engine: str) -> None:
    with pytest.raises(BrokenPipeError):
        follow.copy(engine, "project", ClosedPipe(), follow=True)
    shown = io.BytesIO()
    follow.copy(engine, "project", shown, follow=True)
    assert len(shown.getvalue().splitlines()) == 4
