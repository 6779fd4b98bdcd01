"""Every field of transformers' TrainingArguments with a value that is not its default, and what it must do.

Also runs inside the image, as each of two ranks: train_fields.py RESULTS. It trains all of them, one after another
because imports take seconds, and rank 0 writes to the file what became of each run.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

DATA, OUTPUT = "/data", "/output"
# 22 rows, two steps of eight: less than an epoch.
COMMON = (
    *(f"--model_name_or_path={DATA}/tiny", f"--train_file={DATA}/train.csv", f"--validation_file={DATA}/eval.csv"),
    *("--max_seq_length=32", "--learning_rate=0.05", "--per_device_train_batch_size=4", "--do_train", "--do_eval"),
    *("--quiet", "--save_strategy=no", "--eval_strategy=no", "--max_steps=2", "--ddp_timeout=60"),
)
SAVING = ("--save_strategy=steps", "--save_steps=1")
# A classifier with other labels than the data, sharded.
RENAMED = (f"--model_name_or_path={DATA}/renamed", "--fsdp=full_shard", *SAVING)
BEST = (*SAVING, "--eval_strategy=steps", "--eval_steps=1", "--load_best_model_at_end")


@dataclass(frozen=True)
class Case:
    """A run with `flags` that tests `fields`. It trains, or is refused in one line that contains `refused`.

    `same`: whether its weights equal those of a run without these flags, None if unknown. `prints`: text in the
    output of rank 0. `leaves`: files or folders in the output folder. `late`: refused only after an evaluation.
    """

    flags: tuple[str, ...]
    fields: tuple[str, ...]
    same: bool | None = None
    prints: str = ""
    refused: str = ""
    leaves: tuple[str, ...] = ()
    late: bool = False


def other(*flags: str, **expected: Any) -> Case:
    """Trains other weights."""
    return Case(flags, _fields(flags), same=False, **expected)


def same(*flags: str, **expected: Any) -> Case:
    """Trains the same weights: the fields are about something else."""
    return Case(flags, _fields(flags), same=True, **expected)


def refused(text: str, *flags: str) -> Case:
    return Case(flags, _fields(flags), refused=text)


def answered(*flags: str) -> Case:
    """A flag of old guides: trained with a note that names it, or refused."""
    return Case(flags, _fields(flags), prints=flags[0].partition("=")[0], refused=flags[0].partition("=")[0])


def _fields(flags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(flag[2:].partition("=")[0] for flag in flags if flag.startswith("--"))


CASES = (
    same(),
    Case(RENAMED, (), prints="the model gets a new head"),
    Case((*RENAMED, f"--resume_from_checkpoint={OUTPUT}/1/checkpoint-1"), (), prints="done: 2 steps"),
    # How training goes.
    other("--per_device_train_batch_size=2"),
    other("--max_steps=1"),
    other("--num_train_epochs=1", "--max_steps=-1"),
    other("--learning_rate=0.01"),
    other("--lr_scheduler_type=constant"),
    other("--lr_scheduler_type=cosine_with_min_lr", '--lr_scheduler_kwargs={"min_lr": 0.01}'),
    other("--lr_scheduler_type=inverse_sqrt", '--lr_scheduler_kwargs={"timescale": 5}'),
    other("--warmup_steps=1"),
    other("--optim=sgd"),
    refused("--optim_args", "--optim_args=amsgrad=True"),
    refused("galore_torch", "--optim=galore_adamw", "--optim_target_modules=all-linear"),
    refused("bitsandbytes", "--optim=adamw_bnb_8bit"),
    refused("restores its own callbacks", "--restore_callback_states_from_checkpoint"),
    refused(
        "--lr_scheduler_kwargs has the key 'nonsense', which --lr_scheduler_type cosine does not take, "
        "expected one of: num_cycles",
        *("--lr_scheduler_type=cosine", '--lr_scheduler_kwargs={"nonsense": 1}'),
    ),
    refused(
        "--lr_scheduler_type constant does not take, expected none: remove the flag",
        *("--lr_scheduler_type=constant", '--lr_scheduler_kwargs={"nonsense": 1}'),
    ),
    refused("'[1]', expected a JSON object", "--lr_scheduler_kwargs=[1]"),
    refused(
        "'[1]', expected a JSON object",
        *("--lr_scheduler_type=reduce_lr_on_plateau", "--lr_scheduler_kwargs=[1]", "--eval_strategy=steps"),
        "--metric_for_best_model=accuracy",
    ),
    refused("with --lr_scheduler_kwargs", "--lr_scheduler_type=polynomial", '--lr_scheduler_kwargs={"lr_end": 9}'),
    other("--weight_decay=0.5"),
    other("--adam_beta1=0.5"),
    other("--adam_beta2=0.5"),
    other("--adam_epsilon=0.1"),
    other("--gradient_accumulation_steps=2"),
    other("--max_grad_norm=0.01"),
    other("--label_smoothing_factor=0.3"),
    other("--bf16"),
    other("--neftune_noise_alpha=5"),
    other("--seed=7"),
    other("--data_seed=7"),
    other("--train_sampling_strategy=sequential"),
    other("--train_sampling_strategy=group_by_length", "--length_column_name=x"),
    other('--accelerator_config={"split_batches": true}'),
    other('--accelerator_config={"use_seedable_sampler": false}'),
    # What must not change the weights.
    same(
        *("--average_tokens_across_devices=false", "--use_cache", "--torch_empty_cache_steps=1"),
        *(
            "--logging_steps=1",
            "--logging_first_step",
            "--log_on_each_node=false",
            "--logging_nan_inf_filter=false",
        ),
        *("--include_num_input_tokens_seen=true", "--log_level=info", "--log_level_replica=error"),
        *(
            "--disable_tqdm=false",
            "--report_to=tensorboard",
            "--run_name=x",
            "--project=x",
            "--trackio_space_id=x",
        ),
        *(
            "--trackio_bucket_id=x",
            "--trackio_static_space_id=x",
            "--hub_token=hf_secret",
            "--hub_private_repo=true",
        ),
        *("--hub_model_id=me/x", "--hub_strategy=end", "--hub_always_push", "--hub_revision=x"),
        *("--include_for_metrics=loss", "--skip_memory_metrics=false", "--do_predict", "--ddp_timeout=70"),
        prints="step 1/2  loss",
        leaves=("runs",),
    ),
    same(
        *("--dataloader_num_workers=1", "--dataloader_pin_memory=false", "--dataloader_persistent_workers"),
        *("--dataloader_prefetch_factor=4", "--dataloader_multiprocessing_context=fork"),
        *("--dataloader_in_order=false", "--dataloader_drop_last", "--ddp_find_unused_parameters=true"),
        *("--ddp_bucket_cap_mb=1", "--ddp_broadcast_buffers=true", "--full_determinism"),
        prints="(13 rows)",
    ),
    same(
        *(
            "--eval_strategy=steps",
            "--eval_steps=1",
            "--eval_delay=1",
            "--eval_on_start",
            "--eval_accumulation_steps=1",
        ),
        *("--per_device_eval_batch_size=2", "--logging_strategy=epoch", "--activation_checkpointing"),
        '--activation_checkpointing_kwargs={"use_reentrant": true}',
        prints="evaluation at step 0  ",
    ),
    same("--gradient_checkpointing", '--gradient_checkpointing_kwargs={"use_reentrant": true}'),
    same("--gradient_checkpointing", '--gradient_checkpointing_kwargs={"every_n_layers": 2, "debug": false}'),
    refused(
        "has the key 'wrong_key', which gradient checkpointing on CPUs does not take, expected one of: debug, "
        "determinism_check, early_stop, every_n_layers, preserve_rng_state, use_reentrant",
        *("--gradient_checkpointing", '--gradient_checkpointing_kwargs={"wrong_key": 1}'),
    ),
    refused(
        "--activation_checkpointing_kwargs has every_n_layers 0, expected an integer above 0",
        *("--activation_checkpointing", '--activation_checkpointing_kwargs={"every_n_layers": 0}'),
    ),
    refused(
        "--gradient_checkpointing_kwargs: ",
        *("--gradient_checkpointing", '--gradient_checkpointing_kwargs={"use_reentrant": true, "debug": true}'),
    ),
    same("--ddp_static_graph=true"),
    other("--torch_compile_backend=eager", prints="computes padding: torch.compile is on"),  # and other roundings
    same("--prediction_loss_only", prints="(13 rows)"),
    same("--bf16_full_eval", prints="(13 rows)"),
    same("--use_cpu"),
    same(
        *(*SAVING, "--save_only_model", "--save_on_each_node", "--save_total_limit=1", "--enable_jit_checkpoint"),
        "--ignore_data_skip",
        leaves=("checkpoint-2",),
    ),
    same(*SAVING, "--resume_from_checkpoint=true", prints="no checkpoint in", leaves=("checkpoint-1",)),
    Case(
        (*BEST, "--metric_for_best_model=accuracy", "--greater_is_better=true"),
        _fields((*BEST, "--metric_for_best_model=", "--greater_is_better=")),
        prints="evaluation at step 1 ",
    ),
    Case(("--fsdp=full_shard",), ("fsdp",), prints="done: 2 steps"),
    # What has no meaning here, or lacks something.
    Case(
        ("--fsdp=full_shard", "--use_peft"), (), refused="--fsdp cannot train classifier beside an adapter: remove"
    ),
    refused("cannot write to", "--push_to_hub"),
    refused("--tf32", "--tf32=true"),
    refused("--fsdp_config", "--fsdp=full_shard", '--fsdp_config={"x": 1}'),
    refused("--torch_compile", "--torch_compile"),
    refused("expected one of", "--torch_compile_backend=nonsense"),
    refused("expected one of", "--torch_compile_mode=nonsense"),
    refused("--use_liger_kernel", "--use_liger_kernel"),
    refused("--liger_kernel_config", '--liger_kernel_config={"rope": true}'),
    refused("--eval_do_concat_batches", "--eval_do_concat_batches=false"),
    refused("--eval_use_gather_object", "--eval_use_gather_object"),
    refused("--batch_eval_metrics", "--batch_eval_metrics"),
    refused("dispatch_batches", '--accelerator_config={"dispatch_batches": true}'),
    refused("even_batches", '--accelerator_config={"even_batches": false}'),
    refused("nonsense", '--accelerator_config={"nonsense": 1}'),
    refused("--parallelism_config", "--parallelism_config={}"),
    Case((*BEST, "--metric_for_best_model=nonsense"), (), refused="expected one of: accuracy", late=True),
    Case(
        ("--lr_scheduler_type=reduce_lr_on_plateau", "--metric_for_best_model=nonsense", "--eval_strategy=steps"),
        (),
        refused="expected one of: accuracy",
        late=True,
    ),
    refused("--load_best_model_at_end needs evaluations", "--load_best_model_at_end"),
    refused("--save_strategy best needs evaluations", "--save_strategy=best", "--metric_for_best_model=f1"),
    refused(
        "split_batches with --per_device_eval_batch_size 3, expected a multiple of the number of ranks, 2",
        '--accelerator_config={"split_batches": true}',
        "--per_device_eval_batch_size=3",
    ),
    refused("wandb", "--report_to=wandb"),
    refused("--label_names", "--label_names=nonsense"),
    refused("--debug", "--debug=underflow_overflow"),
    refused("--dataloader_num_workers", "--dataloader_num_workers=0", "--dataloader_persistent_workers"),
    *(
        answered(flag)
        for flag in (
            *("--fp16", "--fp16_full_eval", "--auto_find_batch_size", "--deepspeed=x.json", "--ddp_backend=gloo"),
            *("--local_rank=1", "--remove_unused_columns=false"),
        )
    ),
)


def name_of(case: Case) -> str:
    return " ".join(case.flags) or "nothing"


def main(results: str) -> None:
    from transformers import TrainingArguments

    runs = import_module("many_runs")
    done: list[dict[str, object]] = []
    for number, case in enumerate(CASES):
        done.append(runs.run([*COMMON, f"--output_dir={OUTPUT}/{number}", *case.flags]))
        document = {"fields": [field.name for field in fields(TrainingArguments)], "runs": done}
        if runs.RANK == 0:
            Path(results).write_text(json.dumps(document))
        if done[-1]["code"] == 1:
            print(done[-1]["stderr"], file=sys.stderr)
            os._exit(1)  # the other rank may wait for this one


if __name__ == "__main__":
    main(sys.argv[1])
