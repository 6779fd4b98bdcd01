"""Runs in every rank: trains a small model whose best checkpoint is not the last, and goes back to it at the end.

Prints a line for each case: its name, the best checkpoint's folder, how many steps were taken, which checkpoints
are there afterwards, and whether every rank has that checkpoint's weights. Some cases resume another case's run.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from cpu_train_stack.group.create import gather
from cpu_train_stack.train.loop import stopping
from cpu_train_stack.train.loop.trainer import CpuTrainer
from cpu_train_stack.train.model import sharding
from cpu_train_stack.train.output import replicas


class Rows(list[dict[str, Any]]):
    def lengths(self) -> list[int]:
        return [len(row["input_ids"]) for row in self]


RANK = dist.get_rank()
ROWS = Rows({"input_ids": [row + 5, 7, row % 3 + 30], "labels": row % 2} for row in range(16))
SCORES = (1, 3, 2, 0, 2)  # of the evaluations after each step


class Touch(TrainerCallback):
    """Creates a file before the third step."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == 2:
            self._file.touch()


def case(
    name: str,
    shared: bool = True,
    adapter: bool = False,
    patience: int = 0,
    sharded: bool = False,
    resumed: tuple[Path, int] | None = None,
    stopped: bool = False,
    **options: Any,
) -> Path:
    """`resumed`: the output folder and the step. `stopped`: by a file, at the end of the third step."""
    folders = gather(tempfile.mkdtemp())
    if not shared:
        os.chdir(folders[RANK])  # so that only rank 0 finds what it writes
    output = resumed[0] if resumed else Path(folders[0] if shared else "run")
    scores = iter(SCORES[resumed[1] if resumed else 0 :])
    arguments = TrainingArguments(
        str(output),
        use_cpu=True,
        max_steps=len(SCORES),
        learning_rate=0.1,
        per_device_train_batch_size=2,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        **options,
    )
    set_seed(1)
    config = BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    model: Any = BertForSequenceClassification(config)
    if sharded:
        if RANK == 0:
            model.save_pretrained(folders[0] + "/start")
        dist.barrier()
        model = BertForSequenceClassification.from_pretrained(folders[0] + "/start", **sharding.options(2))
    if adapter:
        kind = None if sharded else "SEQ_CLS"  # which also trains the head
        model = get_peft_model(model, LoraConfig(task_type=kind, target_modules=["query"]))
    trainer = CpuTrainer(
        model=model,
        args=arguments,
        train_dataset=ROWS,
        eval_dataset=ROWS[:4],
        compute_metrics=lambda _: {"score": next(scores)},
    )
    if patience:
        trainer.add_callback(EarlyStoppingCallback(patience))
    if stopped:
        stop = Path(folders[0], "stop")
        trainer.add_callback(Touch(stop))
        trainer.add_callback(stopping.StopOnRequest([stop]))
    trainer.train_from(output / f"checkpoint-{resumed[1]}" if resumed else None)
    trainer.save_model()
    dist.barrier()
    best, written = Path(str(trainer.state.best_model_checkpoint)), "none"
    if RANK == 0:
        file = "adapter_model.safetensors" if adapter else "model.safetensors"
        expected, found = load_file(best / file), load_file(output / file)
        written = "best" if all(found[key].equal(expected[key]) for key in expected) else "others"
    hashes = set(gather(replicas.weights_sha256(model)))
    if RANK == 0:
        there = ",".join(sorted(path.name.rpartition("-")[2] for path in output.glob("checkpoint-*")))
        drifted = "drifted" if len(hashes) > 1 else "alike"
        step = trainer.state.global_step
        sys.stdout.write(f"{name} {best.name} {step} {there} {written} {drifted}\n")
        if stopped:
            state = json.loads((output / f"checkpoint-{step}" / "trainer_state.json").read_text())
            kept = state["stateful_callbacks"]["Losses"]["attributes"]["losses"]
            sys.stdout.write(f"{name}: the checkpoint has {len(kept)} losses\n")
    return output


BY_SCORE: dict[str, Any] = {"metric_for_best_model": "score", "greater_is_better": True, "save_total_limit": 2}
case("by_score", **BY_SCORE)
case("by_the_opposite", metric_for_best_model="score", greater_is_better=False, save_total_limit=1)
case("stopped_early", patience=1, **BY_SCORE)
case("adapter", adapter=True, **BY_SCORE)
case("sharded", sharded=True, **BY_SCORE)
case("folders_of_their_own", shared=False, **BY_SCORE)
case("sharded_adapter", shared=False, sharded=True, adapter=True, **BY_SCORE)
ended = case("ended", **{**BY_SCORE, "save_total_limit": None})
case("resumed_at_the_end", resumed=(ended, 5), **BY_SCORE)
moved = ended.with_name(f"{ended.name}-moved")
if RANK == 0:
    shutil.move(ended, moved)
dist.barrier()
case("moved", resumed=(moved, 3), **BY_SCORE)
stopping.CHECK_SECONDS = 0
case("asked_to_stop", stopped=True, **{**BY_SCORE, "save_total_limit": 1, "greater_is_better": False})
