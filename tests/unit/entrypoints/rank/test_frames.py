"""What is left of a traceback, and what a rank says in one line."""

from __future__ import annotations

import runpy
import traceback
from pathlib import Path

import pytest

from entrypoints import adapt
from entrypoints.cli.options import positive_integer
from entrypoints.placement.detect import DistributedEnvironment
from entrypoints.rank import frames, last_words


def raised(path: Path, text: str) -> BaseException:
    path.write_text(text)
    try:
        runpy.run_path(str(path), {"called": positive_integer})
    except BaseException as error:  # noqa: BLE001 - whatever it raised is looked at
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None  # this test's frame
        return error
    raise AssertionError("nothing was raised")


def files(error: BaseException) -> list[str]:
    return [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]


def test_a_scripts_error_begins_in_the_script(tmp_path: Path) -> None:
    error = raised(tmp_path / "script.py", "def deep():\n    1 / 0\ndeep()\n")
    frames.strip(error, is_script=True)
    assert files(error) == ["script.py", "script.py"]
    assert frames.position(error, is_script=True) == f"{tmp_path}/script.py:2"


def test_a_syntax_error_of_the_script_has_no_frame_at_all(tmp_path: Path) -> None:
    error = raised(tmp_path / "script.py", "def deep(:\n")
    frames.strip(error, is_script=True)
    assert files(error) == []
    assert f'File "{tmp_path}/script.py", line 1' in "".join(traceback.format_exception(type(error), error, None))


def test_the_causes_of_an_error_are_stripped_as_well(tmp_path: Path) -> None:
    text = "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError from error\n"
    error = raised(tmp_path / "script.py", text)
    frames.strip(error, is_script=True)
    assert error.__cause__ is not None
    assert files(error) == files(error.__cause__) == ["script.py"]


def test_our_frames_between_the_scripts_and_a_librarys_are_left_out(tmp_path: Path) -> None:
    package = Path(adapt.__file__).parent
    code = compile("def between(do):\n    return do()\n", str(package / "arguments.py"), "exec")
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - a frame that claims to be ours
    path = tmp_path / "script.py"
    path.write_text("def fail():\n    raise KeyError('label')\nbetween(fail)\n")
    with pytest.raises(KeyError) as caught:
        runpy.run_path(str(path), {"between": names["between"]})
    frames.strip(caught.value, is_script=True)
    assert "arguments.py" not in files(caught.value)
    assert files(caught.value)[-2:] == ["script.py", "script.py"]


def test_an_error_of_our_own_code_keeps_its_frames(tmp_path: Path) -> None:
    error = raised(tmp_path / "script.py", "called('x')\n")
    frames.strip(error, is_script=True)
    assert files(error)[-1] == "options.py"


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
def test_an_error_that_blames_another_rank_is_known_by_its_text(text: str, expected: bool) -> None:
    assert last_words.blames_another(RuntimeError(text)) is expected


class Store:
    """A meeting place of threads: what torch's stores do, in one process."""

    def __init__(self) -> None:
        self.tickets, self.kept = 0, b""

    def add(self, key: str, amount: int, /) -> int:
        self.tickets += amount
        return self.tickets

    def set(self, key: str, value: str, /) -> None:
        self.kept = value.encode()

    def get(self, key: str, /) -> bytes:
        return self.kept


def test_the_first_rank_tells_all_and_the_others_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store()
    for rank in (2, 0):
        error = raised(tmp_path / "script.py", "\n\n1 / 0\n")
        place = DistributedEnvironment(rank=rank, world_size=3, local_world_size=3, local_rank=rank)
        last_words.say(error, place, store, is_script=True)
        said = capsys.readouterr().err
        if rank == 2:
            assert said.startswith("Traceback (most recent call last):\n")
            assert said.endswith("ZeroDivisionError: division by zero\n")
        else:
            place_of_error = f"({tmp_path}/script.py:3)"
            assert (
                said == f"rank 0: ZeroDivisionError: division by zero {place_of_error}; rank 2 has failed before\n"
            )
