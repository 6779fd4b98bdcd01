"""Atomic writes, files that the user names, and locks between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import LockedError, locked, scratch, write_output
from tests.unit.entrypoints import ROOT

WRITE = """
import sys
from pathlib import Path
from cpu_train_stack.cli.files import write_atomic
for _ in range(500):
    write_atomic(Path(sys.argv[1]), sys.argv[2] * 10_000)
"""


def test_two_processes_can_write_the_same_file_at_the_same_time(tmp_path: Path) -> None:
    file = tmp_path / "file"
    argv = [sys.executable, "-c", WRITE, str(file)]
    writers = [subprocess.Popen([*argv, letter], stderr=subprocess.PIPE, cwd=ROOT) for letter in "ab"]
    ended = [writer.communicate(timeout=60)[1] for writer in writers]
    assert ended == [b"", b""]
    assert file.read_text() in ("a" * 10_000, "b" * 10_000)
    assert list(tmp_path.iterdir()) == [file]


def test_a_links_target_is_replaced_and_the_link_is_kept(tmp_path: Path) -> None:
    file, link, dangling = tmp_path / "file", tmp_path / "link", tmp_path / "dangling"
    file.write_text("old")
    link.symlink_to(file)
    dangling.symlink_to(tmp_path / "new" / "file")
    write_output(link, "new", "--output")
    write_output(dangling, "new", "--output")
    assert (link.is_symlink(), dangling.is_symlink()) == (True, True)
    assert file.read_text() == dangling.read_text() == "new"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    try:
        write_output(pipe, "text", "--output")
        assert pipe.is_fifo()
        assert reader.communicate(timeout=60)[0] == "text"
    finally:
        reader.kill()
        reader.wait()


def test_standard_output_is_appended_to_by_its_name(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")  # as /dev/stdout, which a failing test must not replace
    file.write_text("first\n")
    script = "import sys; from pathlib import Path; from cpu_train_stack.cli.files import write_output as write\n"
    script += "write(Path(sys.argv[1]), 'second\\n', '--output')"
    argv = [sys.executable, "-c", script, str(link)]
    with file.open("a") as stream:
        subprocess.run(argv, stdout=stream, cwd=ROOT, check=True, timeout=60)
    assert file.read_text() == "first\nsecond\n"
    piped = subprocess.run(argv, capture_output=True, cwd=ROOT, check=True, timeout=60)
    assert piped.stdout == b"second\n"


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "new", loop / "new"):
        with pytest.raises(UsageError, match=r"--html .* cannot be written \(.*\): choose another file"):
            write_output(path, "text", "--html")


HOLD = """
import sys, time
from pathlib import Path
from cpu_train_stack.cli.files import locked
with locked(Path(sys.argv[1]), waiting=None):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_is_held_until_its_process_ends(tmp_path: Path) -> None:
    lock = tmp_path / "folder" / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockedError), locked(lock, waiting=None):
            pass
        waited: list[bool] = []

        def waiting() -> None:
            waited.append(True)
            holder.kill()

        with locked(lock, waiting):
            assert waited == [True]
    finally:
        holder.kill()
        holder.wait()


def test_a_lock_that_is_a_link_is_refused_and_no_file_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("of another user")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "link", None):
        pass
    with locked(tmp_path / "file", None):
        pass
    assert (tmp_path / "file").read_text() == "of another user"


_SCRATCH = """
import sys, time
from pathlib import Path
from cpu_train_stack.cli.files import scratch
with scratch(Path(sys.argv[1])) as folder:
    (folder / "inner").mkdir()
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.mark.timeout(60)
def test_the_scratch_folder_of_a_killed_command_is_deleted_and_that_of_a_running_one_stays(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _SCRATCH, str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        other = Path(process.stdout.readline().strip())
        with scratch(tmp_path) as mine:
            assert {other, mine} == {*tmp_path.iterdir()}
        assert [*tmp_path.iterdir()] == [other]
        process.kill()
        process.wait()
        with scratch(tmp_path) as mine:
            assert [*tmp_path.iterdir()] == [mine]
    assert [*tmp_path.iterdir()] == []


def test_a_scratch_folder_is_deleted_whatever_was_unpacked_there(tmp_path: Path) -> None:
    """An image may have a thousand folders in each other, which shutil cannot delete."""
    try:
        with scratch(tmp_path) as folder:
            subprocess.run(["mkdir", "-p", "/".join(["d"] * 1500)], cwd=folder, check=True)
            (folder / "closed/inner").mkdir(parents=True)
            (folder / "closed").chmod(0)
        assert [*tmp_path.iterdir()] == []
    finally:  # pytest cannot delete it either
        subprocess.run(["rm", "-rf", tmp_path], check=True)
