"""The output folder: whether it may be used, which checkpoint in it to go on from, and whose it is."""

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

from entrypoints.errors import UsageError
from entrypoints.train import checkpoints, results, staging

# The same for every start of one job, another for every other job.
JOB = "CPU_TRAIN_STACK_JOB"
_SIGNATURE = "_job"  # Trainer leaves names with an underscore out of what it pushes to the hub
# torchrun's agent keeps a folder of its own for as long as it lives; each rank learns of it by this file.
_AGENTS_FILE = "TORCHELASTIC_ERROR_FILE"
_AGENTS_FOLDER = re.compile(r"(.+)/attempt_\d+/")


@dataclass(frozen=True)
class Start:
    """Where a run begins: at a checkpoint, or (None) at the pretrained model. `replaces`: the folder's other
    checkpoints are an earlier run's, and are to be deleted."""

    checkpoint: Path | None
    notes: tuple[str, ...] = ()
    replaces: bool = False


def job_name(environ: Mapping[str, str], flags: Mapping[str, Any]) -> str:
    """What this job is called each time that its launcher starts it; empty where no launcher would start it again.

    `flags` are the command line's: another command is another job.
    """
    agent = _AGENTS_FOLDER.match(environ.get(_AGENTS_FILE, ""))
    name = environ.get(JOB) or (agent[1] if agent else "")
    command = json.dumps(flags, sort_keys=True, default=str)
    return f"{name} {hashlib.sha256(command.encode()).hexdigest()[:12]}" if name else ""


def choose_start(folder: Path, resume: str | None, overwrite: bool, jobs: Collection[str] = ()) -> Start:
    """Decides where to begin; no checkpoint is lost by it.

    `resume` is --resume_from_checkpoint: a path, "true" for the last whole checkpoint in `folder`, or None.
    `jobs` are the ranks' names of this job: a folder that it has written to is gone on with, whatever the flags
    say, and begun as they say if there is no checkpoint yet.
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
        return _as_asked(folder, resume, f"no checkpoint of this job in '{folder}' yet: it begins again")
    if not overwrite:
        _refuse_another_run(folder, resume)
    start = _as_asked(folder, resume)
    return Start(start.checkpoint, start.notes, replaces=overwrite)


def check_checkpoint(path: Path) -> None:
    """Raises UsageError where training cannot go on from the checkpoint."""
    fault = checkpoints.fault(path)
    if fault is not None:
        raise UsageError(f"--resume_from_checkpoint '{path}': {fault}, expected a whole checkpoint folder")


def _as_asked(folder: Path, resume: str | None, *notes: str) -> Start:
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
    """Raises UsageError where checkpoints of another run would stand among those of this one."""
    if _is_yes(resume):
        return
    present = checkpoints.all_in(folder)
    if _is_no(resume) or Path(str(resume)).resolve().parent != folder.resolve():
        if present or (folder / results.NAME).exists():
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
    """Refuses a checkpoint of another model or with other labels. `config` is that of the model at hand, `adapter`
    whether it has one."""
    if checkpoints.is_adapter(checkpoint) != adapter:
        found, expected = ("a whole model", "an adapter") if adapter else ("an adapter", "a whole model")
        raise UsageError(
            f"checkpoint '{checkpoint}' is of another run: found {found}, expected {expected}; resume with "
            "the same --use_peft"
        )
    if checkpoints.is_adapter(checkpoint):
        return  # its weights have the shapes of the model's layers, or are refused
    saved = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    for name in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size", "id2label"):
        # JSON turns the numbers of labels into strings.
        expected = json.loads(json.dumps(config.get(name)))
        if name in saved and saved[name] != expected:
            raise UsageError(
                f"checkpoint '{checkpoint}' is of another run: its {name} is {saved[name]}, expected {expected}; "
                "resume with the model and the labels that it was made with"
            )


def prepare(folder: Path, start: Start | None = None, jobs: Collection[str] = ()) -> None:
    """Makes the folder, proves that it can be written to, and takes an earlier run's result away.

    With `start`, which rank 0 gives: deletes the checkpoints that it replaces, then leaves `jobs` in the folder as
    the names of the job that writes there. Raises UsageError if that is not possible.
    """
    # Ranks in several containers share the folder, and may have the same process number.
    probe = folder / f".writable.{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        (folder / results.NAME).unlink(missing_ok=True)
        staging.clear(folder)
        if start is not None:
            kept = start.checkpoint.resolve() if start.checkpoint else None
            for path in checkpoints.all_in(folder):
                if start.replaces and path.resolve() != kept:
                    shutil.rmtree(path)
            # Not before: if this job ends here, its next start has to replace what is left.
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
    """Gives the final weights the mode that every new file gets: safetensors saves them for their owner alone,
    who in a container is hardly ever the user that reads them afterwards."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.glob("*.safetensors"):
        path.chmod(0o666 & ~mask)
