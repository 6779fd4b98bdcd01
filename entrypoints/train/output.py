"""The output folder: whether it may be used, and which checkpoint in it to go on from."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoints.errors import UsageError
from entrypoints.train import checkpoints, results, staging

# The same for every start of one job, another for every other job.
JOB = "CPU_TRAIN_STACK_JOB"
_SIGNATURE = ".job"


@dataclass(frozen=True)
class Start:
    """Where a run begins: at a checkpoint, or (None) at the pretrained model."""

    checkpoint: Path | None
    notes: tuple[str, ...] = ()


def choose_start(folder: Path, resume: str | None, overwrite: bool) -> Start:
    """Decides where to begin; changes nothing.

    `resume` is --resume_from_checkpoint: a path, "true" for the last whole checkpoint in `folder`, or None.
    Raises UsageError for a checkpoint that cannot be used, and for a folder that holds another run.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output_dir '{folder}' is a file, expected a folder")
    if resume is None or resume.lower() in ("false", "no", "0"):
        if not overwrite and _holds_a_run(folder):
            raise UsageError(
                f"--output_dir '{folder}' holds an earlier run: write another folder, "
                "--resume_from_checkpoint true to go on with it, or --overwrite_output_dir to replace it"
            )
        return Start(None)
    if resume.lower() not in ("true", "yes", "1"):
        fault = checkpoints.fault(Path(resume))
        if fault is not None:
            raise UsageError(f"--resume_from_checkpoint '{resume}': {fault}, expected a whole checkpoint folder")
        return Start(Path(resume))
    found, notes = checkpoints.last_whole(folder)
    if found is None:
        notes = [*notes, f"no checkpoint in '{folder}': starting from the pretrained model"]
    return Start(found, tuple(notes))


def restarted(environ: Mapping[str, str], folder: Path) -> bool:
    """Whether the launcher starts this run again after a failure: it then goes on, whatever its flags say.

    TORCHELASTIC_RESTART_COUNT is torchrun's; CPU_TRAIN_STACK_RESTARTS is set where the whole job is started anew.
    Neither counts a pod that Kubernetes has replaced: there the job has a name, which is in the output folder.
    """
    counts = (environ.get(name, "0") for name in ("TORCHELASTIC_RESTART_COUNT", "CPU_TRAIN_STACK_RESTARTS"))
    return any(count not in ("", "0") for count in counts) or _signed_by(environ.get(JOB, ""), folder)


def _signed_by(job: str, folder: Path) -> bool:
    try:
        return bool(job) and (folder / _SIGNATURE).read_text(encoding="utf-8").strip() == job
    except OSError:
        return False


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


def prepare(folder: Path, overwrite: bool, job: str = "") -> None:
    """Makes the folder, proves that it can be written to, and takes an earlier run's result away.

    `job` is left in it as the name of the job that writes there, for `restarted`.
    Raises UsageError if that is not possible.
    """
    # Ranks in several containers share the folder, and may have the same process number.
    probe = folder / f".writable.{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
        (folder / results.NAME).unlink(missing_ok=True)
        staging.clear(folder)
        if overwrite:
            for path in checkpoints.all_in(folder):
                shutil.rmtree(path)
        if job:
            (folder / _SIGNATURE).write_text(job + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--output_dir '{folder}' cannot be written to by user {os.getuid()} ({error.strerror or error}): "
            "change its owner or mode, or write another folder"
        ) from error


def share_weights(folder: Path) -> None:
    """Gives the final weights the mode that every new file gets: safetensors saves them for their owner alone,
    who in a container is hardly ever the user that reads them afterwards."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.glob("*.safetensors"):
        path.chmod(0o666 & ~mask)


def _holds_a_run(folder: Path) -> bool:
    return (folder / results.NAME).exists() or bool(checkpoints.all_in(folder))
