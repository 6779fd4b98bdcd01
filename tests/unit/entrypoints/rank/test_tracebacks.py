"""The frames that are left of a traceback, and the line of a rank that fails later."""

from __future__ import annotations

import runpy
import traceback
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack import adapt
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.rank import tracebacks


def raised(path: Path, text: str, called: Any = None) -> BaseException:
    path.write_text(text)
    try:
        runpy.run_path(str(path), {"called": called})
    except BaseException as error:  # noqa: BLE001 - the test examines every error
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None  # this test's frame
        return error
    raise AssertionError("nothing was raised")


def files(error: BaseException) -> list[str]:
    return [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]


def frame_in(path: str, text: str) -> Any:
    """The function `call` of a source that claims to be `path` of this package."""
    names: dict[str, object] = {}
    exec(compile(text, str(Path(adapt.__file__).parents[1] / path), "exec"), names)  # noqa: S102
    return names["call"]


def test_a_scripts_traceback_begins_in_the_script(tmp_path: Path) -> None:
    error = raised(tmp_path / "script.py", "def deep():\n    1 / 0\ndeep()\n")
    tracebacks.strip(error, is_script=True)
    assert files(error) == ["script.py", "script.py"]
    assert tracebacks.position(error, is_script=True) == f"{tmp_path}/script.py:2"


def test_a_syntax_error_of_the_script_has_no_frame_at_all(tmp_path: Path) -> None:
    error = raised(tmp_path / "script.py", "def deep(:\n")
    tracebacks.strip(error, is_script=True)
    assert files(error) == []
    assert f'File "{tmp_path}/script.py", line 1' in "".join(traceback.format_exception(type(error), error, None))


def test_the_causes_of_an_error_are_stripped_as_well(tmp_path: Path) -> None:
    text = "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError from error\n"
    error = raised(tmp_path / "script.py", text)
    tracebacks.strip(error, is_script=True)
    assert error.__cause__ is not None
    assert files(error) == files(error.__cause__) == ["script.py"]


def test_our_frames_between_a_scripts_and_a_librarys_are_removed(tmp_path: Path) -> None:
    between = frame_in("adapt/arguments.py", "def call(do):\n    return do()\n")
    path = tmp_path / "script.py"
    path.write_text("def fail():\n    raise KeyError('label')\nbetween(fail)\n")
    with pytest.raises(KeyError) as caught:
        runpy.run_path(str(path), {"between": between})
    tracebacks.strip(caught.value, is_script=True)
    assert "arguments.py" not in files(caught.value)
    assert files(caught.value)[-2:] == ["script.py", "script.py"]


def test_a_trainers_traceback_begins_behind_the_worker() -> None:
    worker = frame_in("rank/worker.py", "def call(do):\n    return do()\n")
    trainer = frame_in("train/run.py", "def call():\n    1 / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        worker(trainer)
    caught.value.__traceback__ = caught.value.__traceback__.tb_next if caught.value.__traceback__ else None
    assert files(caught.value) == ["worker.py", "run.py"]
    tracebacks.strip(caught.value, is_script=False)
    assert files(caught.value) == ["run.py"]


def test_a_mistake_of_our_own_code_keeps_its_frames(tmp_path: Path) -> None:
    own = frame_in("adapt/arguments.py", "def call(do):\n    return {}[do]\n")
    error = raised(tmp_path / "script.py", "called('x')\n", own)
    tracebacks.strip(error, is_script=True)
    assert files(error)[-1] == "arguments.py"


def test_an_error_that_our_code_raises_for_the_script_has_none_of_our_frames(tmp_path: Path) -> None:
    own = frame_in("adapt/arguments.py", "def call(name):\n    raise AttributeError(name)\n")
    error = raised(tmp_path / "script.py", "called('x')\n", own)
    tracebacks.strip(error, is_script=True)
    assert files(error) == ["script.py"]


def test_an_error_of_what_our_code_calls_for_the_script_has_none_of_our_frames(tmp_path: Path) -> None:
    """A method of the script that does not take the arguments of Trainer's call."""
    own = frame_in("adapt/arguments.py", "def call(do):\n    return do('model', num_items_in_batch=1)\n")
    error = raised(tmp_path / "script.py", "called(lambda model: 0)\n", own)
    tracebacks.strip(error, is_script=True)
    assert isinstance(error, TypeError)
    assert files(error) == ["script.py"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ccl: #12 all_reduce(float32) cannot complete: rank 1 has ended (closed)", True),
        ("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1", True),
        ("ccl: #12 all_reduce(float32) did not complete within its timeout of 8 s; rank 1 has ended or", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
    ids=["ccl", "gloo", "a timeout", "its own"],
)
def test_an_error_that_blames_a_peer_is_recognized_by_its_text(text: str, expected: bool) -> None:
    assert tracebacks.blames_peer(RuntimeError(text)) is expected


class Store:
    """A store within one process, with the interface of torch's stores."""

    def __init__(self) -> None:
        self.tickets, self.kept = 0, b""

    def add(self, key: str, amount: int, /) -> int:
        self.tickets += amount
        return self.tickets

    def set(self, key: str, value: str, /) -> None:
        self.kept = value.encode()

    def get(self, key: str, /) -> bytes:
        return self.kept


def test_the_first_rank_prints_its_traceback_and_a_later_rank_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store()
    for rank in (2, 0):
        error = raised(tmp_path / "script.py", "\n\n1 / 0\n")
        place = DistributedEnvironment(rank=rank, world_size=3, local_world_size=3, local_rank=rank)
        tracebacks.report(error, place, store, is_script=True)
        said = capsys.readouterr().err
        if rank == 2:
            assert said.startswith("Traceback (most recent call last):\n")
            assert said.endswith("ZeroDivisionError: division by zero\n")
        else:
            place_of_error = f"({tmp_path}/script.py:3)"
            assert said == f"rank 0: ZeroDivisionError: division by zero {place_of_error}; rank 2 failed first\n"
