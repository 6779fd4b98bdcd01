"""The output folder: whether a run may use it, the checkpoint to resume from, and the job that owns it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoints import contract
from entrypoints.cli.errors import UsageError
from entrypoints.train.model import adapters
from entrypoints.train.output import checkpoints, result, staging

# A name that identifies the job across its restarts.
_SIGNATURE = "_job"  # Trainer does not push files that start with an underscore
# torchrun's agent has a temporary folder for its lifetime. This variable names a file in it.
_AGENT_FILE = "TORCHELASTIC_ERROR_FILE"
_AGENT_FOLDER = re.compile(r"(.+)/attempt_\d+/")


@dataclass(frozen=True)
class Start:
    """Where a run begins: at a checkpoint, or (None) at the pretrained model.

    `replaces`: delete the folder's other checkpoints, which belong to an earlier run.
    """

    checkpoint: Path | None
    notes: tuple[str, ...] = ()
    replaces: bool = False


def job_name(environ: Mapping[str, str], flags: Mapping[str, Any]) -> str:
    """A name that is the same after every restart of this job; empty if no launcher would restart it.

    `flags`: those of the command line. Different flags are a different job.
    """
    agent = _AGENT_FOLDER.match(environ.get(_AGENT_FILE, ""))
    name = environ.get(contract.JOB) or (agent[1] if agent else "")
    command = json.dumps(flags, sort_keys=True, default=str)
    return f"{name} {hashlib.sha256(command.encode()).hexdigest()[:12]}" if name else ""


def choose_start(folder: Path, resume: str | None, overwrite: bool, jobs: Collection[str] = ()) -> Start:
    """Decide where to begin. Deletes no checkpoint.

    `resume` is --resume_from_checkpoint: a path, "true" for the last complete checkpoint in `folder`, or None.
    `jobs`: the ranks' names of this job. If this job has already written to the folder, it resumes from its last
    checkpoint regardless of the flags; without a checkpoint, it starts as the flags specify.
    Raises UsageError for a checkpoint that cannot be used, and for a folder that holds another run.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output_dir '{folder}' is a file, expected a folder")
    try:
        staging.restore(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error
    if _signatures(folder) & {job for job in jobs if job}:
        found, notes = checkpoints.last_whole(folder)
        if found is not None:
            return Start(found, tuple(notes))
        return _start_by_flags(folder, resume, f"no checkpoint of this job in '{folder}' yet: starting over")
    if not overwrite:
        _refuse_another_run(folder, resume)
    start = _start_by_flags(folder, resume)
    return Start(start.checkpoint, start.notes, replaces=overwrite)


def check_checkpoint(path: Path) -> None:
    """Raises UsageError if training cannot resume from the checkpoint."""
    fault = checkpoints.fault(path)
    if fault is not None:
        raise UsageError(f"--resume_from_checkpoint '{path}': {fault}, expected a complete checkpoint folder")


def _start_by_flags(folder: Path, resume: str | None, *notes: str) -> Start:
    if _is_no(resume):
        return Start(None, notes)
    if not _is_yes(resume):
        check_checkpoint(Path(str(resume)))
        return Start(Path(str(resume)), notes)
    found, faults = checkpoints.last_whole(folder)
    if found is None:
        faults = [*faults, f"no checkpoint in '{folder}': starting from the pretrained model"]
    return Start(found, (*notes, *faults))


def _refuse_another_run(folder: Path, resume: str | None) -> None:
    """Raises UsageError if the folder would mix checkpoints of this run and another one."""
    if _is_yes(resume):
        return
    present = checkpoints.all_in(folder)
    if _is_no(resume) or Path(str(resume)).resolve().parent != folder.resolve():
        if present or (folder / result.NAME).exists():
            raise UsageError(
                f"--output_dir '{folder}' holds an earlier run: write another folder, "
                "--resume_from_checkpoint true to go on with it, or --overwrite_output_dir to replace it"
            )
        return
    step = checkpoints.step_of(Path(str(resume)))
    later = [path.name for path in present if checkpoints.step_of(path) > step and not checkpoints.fault(path)]
    if later:
        raise UsageError(
            f"--output_dir '{folder}' holds {', '.join(later)}, later than --resume_from_checkpoint '{resume}': "
            "write another folder, --resume_from_checkpoint true to go on from the last one, or "
            "--overwrite_output_dir to delete the others"
        )


def _is_no(resume: str | None) -> bool:
    return resume is None or resume.lower() in ("false", "no", "0")


def _is_yes(resume: str | None) -> bool:
    return resume is not None and resume.lower() in ("true", "yes", "1")


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"--output_dir '{folder}' cannot be written to by user {os.getuid()} ({error.strerror or error}): "
        "change its owner or mode, or write another folder"
    )


def _signatures(folder: Path) -> set[str]:
    try:
        return set((folder / _SIGNATURE).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError):
        return set()


def check_same_model(checkpoint: Path, config: dict[str, Any], adapter: bool = False) -> None:
    """Refuse a checkpoint of another model or with other labels. `config`: the current model's. `adapter`: whether
    the current model has an adapter."""
    if adapters.is_adapter(checkpoint) != adapter:
        found, expected = ("a full model", "an adapter") if adapter else ("an adapter", "a full model")
        raise UsageError(
            f"checkpoint '{checkpoint}' is of another run: found {found}, expected {expected}; resume with "
            "the same --use_peft"
        )
    if adapters.is_adapter(checkpoint):
        return  # loading its weights checks their shapes
    saved = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    for name in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size", "id2label"):
        # JSON turns the numbers of labels into strings.
        expected = json.loads(json.dumps(config.get(name)))
        if name in saved and saved[name] != expected:
            raise UsageError(
                f"checkpoint '{checkpoint}' is of another run: its {name} is {saved[name]}, expected {expected}; "
                "resume with the same model and labels"
            )


def prepare(folder: Path, start: Start | None = None, jobs: Collection[str] = ()) -> None:
    """Create the folder, check that it is writable, and remove an earlier run's result.

    With `start` (rank 0 only), also delete the checkpoints that it replaces, then record `jobs` in the folder as
    the names of the job that writes there. Raises UsageError on failure.
    """
    # Ranks in several containers share the folder, and may have the same process ID.
    probe = folder / f".writable.{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        (folder / result.NAME).unlink(missing_ok=True)
        staging.clear(folder)
        if start is not None:
            kept = start.checkpoint.resolve() if start.checkpoint else None
            for path in checkpoints.all_in(folder):
                if start.replaces and path.resolve() != kept:
                    shutil.rmtree(path)
            # Last: if this job ends before, its next start must still replace the old checkpoints.
            names = sorted({*jobs} - {""})
            if names:
                probe.write_text("\n".join(names), encoding="utf-8")
                probe.replace(folder / _SIGNATURE)
            else:
                (folder / _SIGNATURE).unlink(missing_ok=True)
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


def share_weights(folder: Path) -> None:
    """Give the final weights the mode of other new files. safetensors makes them readable by their owner only, and
    a container's user is rarely the user who reads them later."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.glob("*.safetensors"):
        path.chmod(0o666 & ~mask)
