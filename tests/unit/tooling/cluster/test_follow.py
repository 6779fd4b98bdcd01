"""The output of a cluster's containers, line by line."""

import errno
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from docker.errors import NotFound
from hypothesis import given
from hypothesis import strategies as st
from urllib3.exceptions import ProtocolError

from tests.unit.tooling.closed_pipe import ClosedPipe
from tooling.basis.paths import ROOT
from tooling.cluster import follow
from tooling.cluster.follow import LONGEST_LINE, LONGEST_PROGRESS, lines
from tooling.cluster.nodes import SERVICE_LABEL

EXPECTED = [f"node-{node} | {line}" for node in range(2) for line in (1, 2)]


@given(text=st.lists(st.sampled_from([b"a", b"\n", b"bc\n", b"\r", b"\nd"])))
def test_lines_are_complete_regardless_of_the_chunks(text: list[bytes]) -> None:
    expected = b"".join(text)
    found = [line.removeprefix(b"x | ") for line in lines("x", text)]
    assert b"".join(found) == expected + (b"" if expected.endswith(b"\n") or not expected else b"\n")
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in found)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("start", "longest"), [(b"\r", LONGEST_PROGRESS), (b"-", LONGEST_LINE)], ids=["progress bar", "long line"]
)
def test_a_line_without_an_end_is_split(start: bytes, longest: int) -> None:
    chunk = start + b"x" * 99
    found = list(lines("x", [chunk] * 40_000))
    assert max(map(len, found)) <= longest + len(chunk) + len(b"x | \n")
    assert b"".join(line.removeprefix(b"x | ").removesuffix(b"\n") for line in found) == chunk * 40_000


def test_progress_bars_are_split_behind_a_complete_state() -> None:
    state = "50% █████\r".encode()
    text = state * 1000
    found = list(lines("x", [text[begin : begin + 701] for begin in range(0, len(text), 701)]))
    assert len(found) > 1
    assert all(line.removeprefix(b"x | ").removesuffix(b"\n").replace(state, b"") == b"" for line in found)


class _Container:
    """A container that has printed two lines and ended."""

    status = "exited"

    def __init__(self, name: str) -> None:
        self.name, self.labels = name, {SERVICE_LABEL: name}

    def logs(self, **_options: bool) -> Iterator[bytes]:
        yield b"1\n2\n"

    def reload(self) -> None: ...


class _LostOnce(_Container):
    """Its engine is lost while it prints the second line."""

    lost = False

    def logs(self, **_options: bool) -> Iterator[bytes]:
        if not self.lost:
            self.lost = True
            yield b"1\n"
            yield b"sec"
            raise ProtocolError
        yield b"1\nsecond\n"


@pytest.fixture
def containers() -> list[_Container]:
    return [_Container("node-0"), _Container("node-1")]


@pytest.fixture
def engine(containers: list[_Container], monkeypatch: pytest.MonkeyPatch) -> str:
    client = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: containers), close=lambda: None)
    monkeypatch.setattr(follow, "connect", lambda _endpoint: client)
    monkeypatch.setattr(follow, "AGAIN_SECONDS", 0.01)
    return "unix:///none"


class _Gone(io.BytesIO):
    """A terminal whose ssh session has ended."""

    def write(self, _line: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


class _Closed(io.BytesIO):
    """A pipe that nobody reads any more."""

    def write(self, _line: object) -> int:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("terminal", [_Gone, _Closed])
def test_the_log_is_complete_although_the_terminal_fails(
    engine: str, tmp_path: Path, terminal: type[io.BytesIO], capsys: pytest.CaptureFixture[str]
) -> None:
    with follow.following(engine, "project", tmp_path / "log", terminal()):
        pass
    assert sorted((tmp_path / "log").read_text().splitlines()) == EXPECTED
    [message] = capsys.readouterr().err.splitlines()
    assert message.startswith("the output cannot be shown (")
    assert message.endswith("/log")


@pytest.mark.timeout(20)
def test_the_output_is_shown_although_the_disk_is_full(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    shown = io.BytesIO()
    with follow.following(engine, "project", tmp_path / "log", shown):
        pass
    assert sorted(shown.getvalue().decode().splitlines()) == EXPECTED
    [message] = capsys.readouterr().err.splitlines()
    assert "/log: No space left on device: the job continues" in message


_PRINTS_AND_EXITS_WITH_3 = """
import sys
from pathlib import Path
from tooling.cluster import follow
follow.WAITING_LINES, follow.SLOW_SECONDS = 100, 0.2
log = follow.Log(Path(sys.argv[1]), sys.stdout.buffer)
log.read(b"%d\\n" % number for number in range(50_000))
log.wait()
follow.END_SECONDS = 0.5
log.flush()
log.close()
sys.exit(3)
"""


@pytest.mark.timeout(60)
def test_a_terminal_that_is_paused_neither_cuts_the_log_nor_delays_the_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PRINTS_AND_EXITS_WITH_3, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.wait(timeout=30) == 3  # nobody has read a line
        assert process.stderr
        assert b"not all lines could be shown: see " in process.stderr.read()
    assert (tmp_path / "log").read_text().splitlines() == [str(number) for number in range(50_000)]


@pytest.mark.timeout(60)
def test_a_slow_terminal_gets_all_lines(
    engine: str, containers: list[_Container], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"".join(b"%d\n" % number for number in range(50_000))
    monkeypatch.setattr(containers[1], "logs", lambda **_: iter([text]))
    monkeypatch.setattr(follow, "WAITING_LINES", 100)
    monkeypatch.setattr(follow, "SLOW_SECONDS", 30.0)
    monkeypatch.setattr(follow, "END_SECONDS", 40.0)
    reads, writes = os.pipe()
    taken: list[bytes] = []

    def take() -> None:
        threading.Event().wait(0.5)
        with os.fdopen(reads, "rb") as pipe:
            taken.extend(pipe)

    reader = threading.Thread(target=take)
    reader.start()
    with os.fdopen(writes, "wb") as terminal, follow.following(engine, "project", tmp_path / "log", terminal):
        pass
    reader.join()
    assert len(taken) == 50_002
    assert sorted(taken) == sorted((tmp_path / "log").read_bytes().splitlines(keepends=True))


@pytest.mark.timeout(20)
def test_no_line_is_repeated_or_lost_with_the_engine(
    engine: str, containers: list[_Container], tmp_path: Path
) -> None:
    containers[:] = [_LostOnce("node-0")]
    with follow.following(engine, "project", tmp_path / "log", io.BytesIO()):
        pass
    assert (tmp_path / "log").read_text() == "node-0 | 1\nnode-0 | second\n"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("gone", ["logs", "reload"])
def test_the_output_of_a_container_ends_when_it_is_removed(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    container: Any = _Container("node-0")
    container.status = "running"
    monkeypatch.setattr(container, gone, Mock(side_effect=NotFound("no such container")))
    expected = [] if gone == "logs" else [b"1\n2\n"]
    assert list(follow._output(container, threading.Event())) == expected


@pytest.mark.timeout(20)
def test_following_ends_when_nobody_reads_standard_output(engine: str) -> None:
    with pytest.raises(BrokenPipeError):
        follow.copy(engine, "project", ClosedPipe(), follow=True)
    shown = io.BytesIO()
    follow.copy(engine, "project", shown, follow=True)
    assert len(shown.getvalue().splitlines()) == 4


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "file"])
def test_only_a_terminal_needs_lines_without_control_characters(is_terminal: bool) -> None:
    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return is_terminal

    raw = b"node-1 | \x1b]0;title\x07 50%\r60%\n"
    safe = rb"node-1 | \x1b]0;title\x07 50%" + b"\rnode-1 | 60%\n"
    for copy in (follow.copy_log, lambda log, terminal: follow.copy_lines([log], terminal)):
        terminal = Terminal()
        copy(io.BytesIO(raw), terminal)
        assert terminal.getvalue() == (safe if is_terminal else raw)
