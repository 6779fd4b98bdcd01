"""Checkpoints are published atomically, incomplete ones are skipped, and the last complete one is never
deleted."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import random
import signal
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.output import checkpoints, integrity
from cpu_train_stack.train.output import folder as output
from tests import fuzzing
from tests.forks import forks
from tests.unit.entrypoints import ROOT


def safetensors(path: Path, size: int = 16, tensor: str = "w") -> None:
    entry = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {}, tensor: entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))


class Storage(pickle.Pickler):
    """Refers to tensors' data as torch.save does: by the name of an entry of the archive."""

    def persistent_id(self, entry: object) -> object:
        return ("storage", "FloatStorage", entry.decode(), "cpu", 25) if isinstance(entry, bytes) else None


STATES: dict[str, object] = {
    "optimizer.pt": {"state": {0: {"step": b"0"}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
    "scheduler.pt": {"last_epoch": 4, "_last_lr": [0.1]},
    "rng_state_0.pth": {"python": (3, (1, 2), None), "numpy": ("MT19937", b"0", 1), "cpu": b"0"},
    "rng_state_1.pth": OrderedDict({"python": (3, (1, 2), None), "numpy": ("MT19937", b"0", 1), "cpu": b"0"}),
}


def archived(path: Path, content: object, *names: str, size: int | None = None) -> None:
    """As torch.save writes it, with the first `size` bytes of the pickle."""
    pickled = io.BytesIO()
    Storage(pickled, protocol=2).dump(content)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled.getvalue()[:size])
        for name in names:
            archive.writestr(f"archive/data/{name}", b"0" * 100)


def complete(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    safetensors(path / "model.safetensors")
    for name, content in STATES.items():
        archived(path / name, content, "0")
    (path / "config.json").write_text('{"model_type": "bert"}')
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "epoch": 0.5, "max_steps": 9}))
    return path


def incomplete(folder: Path, step: int) -> None:
    (complete(folder, step) / "trainer_state.json").unlink()


def cut(path: Path, size: int = -1) -> None:
    path.write_bytes(path.read_bytes()[:size])


def changed(path: Path, old: str, new: str) -> None:
    text = path.read_bytes()
    assert text.count(old.encode()) > 0
    path.write_bytes(text.replace(old.encode(), new.encode()))


class Module:
    """An object that a checkpoint's files never hold."""


def foreign(name: str, content: object, size: int | None = None) -> Callable[[Path], object]:
    return lambda path: archived(path / name, content, "0", size=size)


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def linked(path: Path) -> None:
    path.rename(path.parent / "moved")
    path.symlink_to("nowhere")


def index(path: Path, weight_map: dict[str, str]) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no state": lambda path: (path / "trainer_state.json").unlink(),
    "half a state": lambda path: cut(path / "trainer_state.json"),
    "no weights": lambda path: (path / "model.safetensors").unlink(),
    "half of the weights": lambda path: cut(path / "model.safetensors"),
    "empty weights": lambda path: cut(path / "model.safetensors", 0),
    "no optimizer": lambda path: (path / "optimizer.pt").unlink(),
    "half an optimizer": lambda path: cut(path / "optimizer.pt", 60),
    "no scheduler": lambda path: (path / "scheduler.pt").unlink(),
    "zeros in an optimizer": lambda path: changed(path / "optimizer.pt", "0" * 100, "\0" * 100),
    "no pickle in a scheduler": foreign("scheduler.pt", STATES["scheduler.pt"], 0),
    "half a pickle in an optimizer": foreign("optimizer.pt", STATES["optimizer.pt"], -9),
    "half a pickle of random states": foreign("rng_state_1.pth", STATES["rng_state_1.pth"], 20),
    "a list in a scheduler": foreign("scheduler.pt", [1, 2]),
    "a number in an optimizer": foreign("optimizer.pt", 3),
    "an object in an optimizer": foreign("optimizer.pt", Module()),
    "a command in an optimizer": foreign("optimizer.pt", os.getcwd),
    "the scheduler in an optimizer": foreign("optimizer.pt", STATES["scheduler.pt"]),
    "an optimizer without groups": foreign("optimizer.pt", {"state": {}, "param_groups": []}),
    "an optimizer with other groups": foreign("optimizer.pt", {"state": {}, "param_groups": [3]}),
    "the optimizer in random states": foreign("rng_state_0.pth", STATES["optimizer.pt"]),
    "none in random states": foreign("rng_state_0.pth", None),
    "an optimizer without data": lambda path: archived(path / "optimizer.pt", STATES["optimizer.pt"]),
    "a link to nowhere": linked,
    "a file": lambda path: path.rename(path.parent / "moved").with_name(path.name).touch(),
    "an optimizer that is a FIFO": lambda path: replaced(path / "optimizer.pt", os.mkfifo),
    "weights that are a FIFO": lambda path: replaced(path / "model.safetensors", os.mkfifo),
    "a state that is a FIFO": lambda path: replaced(path / "trainer_state.json", os.mkfifo),
    "a history of numbers": lambda path: changed(path / "trainer_state.json", "}", ', "log_history": [1]}'),
    "an empty random state": lambda path: cut(path / "rng_state_1.pth", 0),
    "half a random state": lambda path: cut(path / "rng_state_0.pth", 80),
    "random states of zeros": lambda path: (path / "rng_state_0.pth").write_bytes(bytes(4000)),
    "a state that is a list": lambda path: (path / "trainer_state.json").write_text("[1]"),
    "a step that is text": lambda path: changed(path / "trainer_state.json", "4", '"4"'),
    "a step that is nested": lambda path: (path / "trainer_state.json").write_text("[" * 99999),
    "an epoch that is no number": lambda path: changed(path / "trainer_state.json", "0.5", "NaN"),
    "an empty configuration": lambda path: cut(path / "config.json", 0),
    "no configuration": lambda path: (path / "config.json").unlink(),
    "an empty adapter's configuration": lambda path: (path / "adapter_config.json").touch(),
    "weights of zeros": lambda path: (path / "model.safetensors").write_bytes(bytes(4000)),
    "another type of weights": lambda path: changed(path / "model.safetensors", "F32", "F16"),
    "an unknown type of weights": lambda path: changed(path / "model.safetensors", "F32", "?32"),
    "weights with a gap": lambda path: changed(path / "model.safetensors", "[0, 16]", "[4, 16]"),
    "an index that is empty": lambda path: (path / "model.safetensors.index.json").touch(),
    "an index of a list": lambda path: (path / "model.safetensors.index.json").write_text('{"weight_map": [1]}'),
    "a shard without its tensor": lambda path: index(path, {"v": "model.safetensors"}),
    "a shard is missing": lambda path: index(path, {"w": "model.safetensors", "v": "model-2.safetensors"}),
}


def test_the_last_complete_checkpoint_is_found_by_its_number(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        complete(tmp_path, step)
    for name in ("checkpoint-x", "checkpoint-\u0663\u0663", f"checkpoint-{'9' * 200}"):
        (tmp_path / name).mkdir()
    assert checkpoints.last_complete(tmp_path) == (tmp_path / "checkpoint-10", [])


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_is_skipped_for_an_older_one(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    older = complete(tmp_path, 2)
    damage(complete(tmp_path, 4))
    found, notes = checkpoints.last_complete(tmp_path, thorough=True)
    assert found == older
    assert len(notes) == 1
    assert notes[0].startswith("checkpoint-4 is skipped:")


def test_no_content_of_a_checkpoints_files_ends_the_check_with_a_traceback(tmp_path: Path) -> None:
    path = complete(tmp_path, 2)
    index(path, {"w": "model.safetensors"})
    (path / "adapter_config.json").write_text("{}")
    safetensors(path / "adapter_model.safetensors")
    contents = {file: file.read_bytes() for file in sorted(path.iterdir())}
    for seed in fuzzing.cases(300):
        chance = random.Random(seed)
        file = chance.choice([*contents])
        file.write_bytes(fuzzing.mutated(contents[file], chance))
        with fuzzing.one_case(seed, file.name):
            assert "\n" not in (integrity.fault(path, thorough=True) or "")
        file.write_bytes(contents[file])
    assert integrity.fault(path, thorough=True) is None


def test_sharded_weights_are_complete_if_every_shard_is(tmp_path: Path) -> None:
    path = complete(tmp_path, 2)
    (path / "model.safetensors").unlink()
    for name in ("a.safetensors", "b.safetensors"):
        safetensors(path / name, tensor=name[0])
    index(path, {"a": "a.safetensors", "b": "b.safetensors"})
    assert integrity.fault(path) is None


def test_a_missing_folder_has_no_checkpoints(tmp_path: Path) -> None:
    assert checkpoints.last_complete(tmp_path) == (None, [])
    assert checkpoints.last_complete(tmp_path / "none") == (None, [])
    assert integrity.fault(tmp_path / "none") == "the folder does not exist"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_has_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    complete(checkpoints.staging_folder(tmp_path), 10)
    assert checkpoints.all_in(tmp_path) == []
    checkpoints.publish(tmp_path, "checkpoint-10")
    assert names(tmp_path) == ["checkpoint-10"]
    assert integrity.fault(tmp_path / "checkpoint-10") is None


def test_a_checkpoint_that_is_saved_again_replaces_the_first(tmp_path: Path) -> None:
    incomplete(tmp_path, 10)
    complete(checkpoints.staging_folder(tmp_path), 10)
    checkpoints.publish(tmp_path, "checkpoint-10")
    assert checkpoints.last_complete(tmp_path) == (tmp_path / "checkpoint-10", [])


_MODULES = ("cpu_train_stack.train.output.checkpoints", "cpu_train_stack.train.output.integrity")
# Publishes a checkpoint, and kills itself before its Nth change of a folder, if there are that many.
KILLED = """
import os, pathlib, signal, sys
from cpu_train_stack.train.output import checkpoints, integrity
output, left = pathlib.Path(sys.argv[1]), int(sys.argv[2])
def kill(event, _):
    global left
    if event in ("os.rename", "os.remove", "os.rmdir"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
checkpoints.publish(output, "checkpoint-10")
checkpoints.rotate(output, 1, None)
"""


def test_a_kill_at_any_moment_of_publishing_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    """With save_total_limit 1, a step that is saved again is the only checkpoint."""
    code, moment = -signal.SIGKILL, 0
    while code == -signal.SIGKILL:
        folder = tmp_path / str(moment)
        complete(folder, 10)
        complete(checkpoints.staging_folder(folder), 10)
        code = forks(_MODULES, ROOT).run(["-c", KILLED, folder, moment]).returncode
        start = output.choose_start(folder, "true", overwrite=False)
        assert start.checkpoint == folder / "checkpoint-10", (moment, names(folder))
        output.prepare(folder, start)
        assert names(folder) == ["checkpoint-10"]
        moment += 1
    assert code == 0
    assert moment > 3


def test_incomplete_checkpoints_of_an_earlier_process_are_deleted_at_the_next_start(tmp_path: Path) -> None:
    incomplete(checkpoints.staging_folder(tmp_path), 10)
    output.prepare(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("limit", "best", "kept"),
    [
        (None, None, [5, 10, 15, 20]),
        (0, None, [5, 10, 15, 20]),
        (2, None, [15, 20]),
        (1, None, [20]),
        (2, 5, [5, 20]),
        (1, 10, [10, 20]),
    ],
)
def test_the_oldest_beyond_the_limit_are_deleted_but_not_the_best(
    tmp_path: Path, limit: int | None, best: int | None, kept: list[int]
) -> None:
    for step in (5, 10, 15, 20):
        complete(tmp_path, step)
    checkpoints.rotate(tmp_path, limit, str(tmp_path / f"checkpoint-{best}") if best else None)
    assert sorted(map(checkpoints.step_of, tmp_path.iterdir())) == kept


def test_the_only_complete_checkpoint_is_kept_although_newer_ones_exist(tmp_path: Path) -> None:
    complete(tmp_path, 5)
    incomplete(tmp_path, 10)
    incomplete(tmp_path, 15)
    checkpoints.rotate(tmp_path, 1, None)
    assert checkpoints.last_complete(tmp_path)[0] == tmp_path / "checkpoint-5"


def test_the_checkpoint_that_was_just_written_is_kept_although_it_has_no_optimizer(tmp_path: Path) -> None:
    """As with --save_only_model."""
    for step in (10, 15, 20):
        (complete(tmp_path, step) / "optimizer.pt").unlink()
    checkpoints.rotate(tmp_path, 1, str(tmp_path / "checkpoint-10"))
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-20"]


def test_a_link_to_itself_is_no_checkpoint_and_does_not_end_the_training(tmp_path: Path) -> None:
    """Before Python 3.13, Path.resolve raises RuntimeError for it."""
    (tmp_path / "checkpoint-10").symlink_to("checkpoint-10")
    (tmp_path / "checkpoint-15").symlink_to("checkpoint-15")
    complete(tmp_path, 20)
    checkpoints.rotate(tmp_path, 1, str(tmp_path / "checkpoint-15"))
    assert "checkpoint-20" in names(tmp_path)
    start = output.choose_start(tmp_path, None, overwrite=True)
    output.check_kept(tmp_path, start, str(tmp_path / "checkpoint-10"))
    output.prepare(tmp_path, start)
    assert "checkpoint-20" not in names(tmp_path)


class Outer:
    class Inner:
        """An object in an optimizer's state."""


def test_an_object_of_a_nested_class_is_no_broken_file(tmp_path: Path) -> None:
    path = complete(tmp_path, 5)
    state = {0: {"step": b"0", "mode": Outer.Inner(), "kind": Outer.Inner}}
    archived(path / "optimizer.pt", {**STATES["optimizer.pt"], "state": state}, "0")  # type: ignore[dict-item]
    assert integrity.fault(path) is None
    archived(path / "optimizer.pt", Outer.Inner())
    assert integrity.fault(path) == "optimizer.pt is missing or broken"


def test_an_old_checkpoint_that_cannot_be_deleted_is_reported_and_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another user wrote it, before this user resumed the run in a folder that both can write to."""
    for step in (10, 20, 30):
        complete(tmp_path, step)
    remove = os.rmdir

    def refuse_the_first(path: str | Path, **options: int | None) -> None:
        if Path(path).name == "checkpoint-10":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        remove(path, **options)

    monkeypatch.setattr(os, "rmdir", refuse_the_first)
    checkpoints.rotate(tmp_path, 1, None)
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-30"]
    captured = "".join(capfd.readouterr())
    assert f"warning: cannot delete '{tmp_path / 'checkpoint-10'}' (--save_total_limit 1): check its" in captured


def test_a_checkpoint_is_published_on_a_file_system_that_cannot_flush_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []

    def flush_files(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").is_dir())
        if flushed[-1]:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    complete(checkpoints.staging_folder(tmp_path), 10)
    monkeypatch.setattr(os, "fsync", flush_files)
    checkpoints.publish(tmp_path, "checkpoint-10")
    assert checkpoints.last_complete(tmp_path)[0] == tmp_path / "checkpoint-10"
    assert set(flushed) == {True, False}


def over_quota(_descriptor: int) -> None:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def test_the_error_of_a_full_disk_names_the_rank_its_node_and_the_checkpoint_to_resume_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(tmp_path, 10)
    incomplete(checkpoints.staging_folder(tmp_path), 20)
    monkeypatch.setattr(os, "fsync", over_quota)
    error = checkpoints.full_disk_error(tmp_path, "step 20", RuntimeError("write failed"))
    assert isinstance(error, UsageError)
    for text in ("rank 0 on ", "is full", "step 20 (write failed)", "resume from checkpoint-10"):
        assert text in str(error)
    assert names(tmp_path) == ["checkpoint-10"]


def test_a_quota_that_is_exceeded_when_a_checkpoint_is_flushed_is_reported_as_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS. The checkpoint of this name that exists is kept."""
    complete(tmp_path, 10)
    complete(checkpoints.staging_folder(tmp_path), 10)
    monkeypatch.setattr(os, "fsync", over_quota)
    with pytest.raises(UsageError, match=r"is full, expected space for the checkpoint of step 10 \(.*quota"):
        checkpoints.publish(tmp_path, "checkpoint-10")
    assert names(tmp_path) == ["checkpoint-10"]
    assert checkpoints.last_complete(tmp_path)[0] == tmp_path / "checkpoint-10"


def test_a_librarys_text_about_a_quota_is_reported_as_a_full_disk(tmp_path: Path) -> None:
    error = RuntimeError("I/O error: Disk quota exceeded (os error 122)")
    assert checkpoints.full_disk_error(tmp_path, "step 20", error) is not None


def test_another_failure_is_not_reported_as_a_full_disk(tmp_path: Path) -> None:
    assert checkpoints.full_disk_error(tmp_path, "step 20", RuntimeError("something else")) is None
