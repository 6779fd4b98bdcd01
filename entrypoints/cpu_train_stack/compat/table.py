"""The table of adaptations of older scripts to today's libraries and to CPUs."""

from __future__ import annotations

import functools

from cpu_train_stack.adapt.adaptation import NOW, Adaptation, Releases, Situation
from cpu_train_stack.compat import offline_metrics, old_names
from cpu_train_stack.compat.flags import FLAGS, OldFlag
from cpu_train_stack.compat.rewriting import rewrite
from cpu_train_stack.placement.launchers import HYDRA, OPEN_MPI

PROCESS_GROUP, SINGLE_RANK = "process-group", "single-rank"
_4_46, _5_0 = Releases("transformers", "4.46"), Releases("transformers", "5.0")
_ACCELERATE = Releases("accelerate")
_TRAINER, _USED, _CALLED = "transformers.trainer", "if the script uses it", "if the script calls it"
_NOT_SET = "if the script does not set it, and torch finds no GPU"


def _not_alone(situation: Situation) -> str | None:
    return None if situation.world_size == 1 else "the job has several ranks"


def _sets_cpu(situation: Situation) -> str | None:
    return "the command line sets it" if {"--use_cpu", "--no_cuda"} & set(situation.arguments) else None


def _is_absent(flag: OldFlag, situation: Situation) -> str | None:
    return None if rewrite(situation.arguments, {flag.name: flag})[1] else "not on the command line"


def _of_flag(flag: OldFlag) -> Adaptation:
    """The adaptation of an old flag, which is needed where the installed TrainingArguments do not know it."""
    refusing = (Releases("accelerate", "1.13"),) if flag.name == "ddp_backend" else ()
    return Adaptation(
        flag.adaptation, flag.line, (Releases("transformers", flag.gone), *refusing),
        {
            "transformers.hf_argparser": "compat.training_arguments:hook_parser",
            "transformers.training_args": "compat.training_arguments:hook_fields",
        },
        when="on the command line", upstream=flag.upstream, obstacle=functools.partial(_is_absent, flag),
        finds_out=True,
    )  # fmt: skip


COMPAT = (
    Adaptation(
        PROCESS_GROUP, "the script's init_process_group uses the existing process group",
        (Releases("torch"),),
        {
            "torch.distributed": "compat.process_group:use_existing",
            "accelerate.state": "compat.process_group:keep",
        },
        when=_CALLED,
    ),
    Adaptation(
        "notebook-launcher", "accelerate's notebook_launcher calls its function in the existing ranks",
        (_ACCELERATE,), {"accelerate.launchers": "compat.process_group:call_in_ranks"}, when=_CALLED,
    ),
    Adaptation(
        SINGLE_RANK, "a job of one rank looks like a plain process, without DDP", (),
        {
            NOW: "compat.single_rank:hide_variables",
            "torch.distributed": "compat.single_rank:create_group_when_needed",
        },
        when="if the job has one rank", obstacle=_not_alone,
    ),
    Adaptation(
        "launcher-variables",
        f"the script finds {HYDRA.rank}, {OPEN_MPI.rank} and the like under every launcher", (),
        {NOW: "compat.launcher_variables:supply_all"},
        when="if the script reads one that its launcher does not set",
    ),
    Adaptation(
        "use-cpu", "TrainingArguments get use_cpu: without it, each rank would be a separate job",
        (Releases("transformers", "4.52"), Releases("accelerate", "1.13"), Releases("transformers", until="4.31")),
        {"transformers.training_args": "compat.cpu:imply_use_cpu"},
        when=_NOT_SET, obstacle=_sets_cpu, finds_out=True,
    ),
    Adaptation(
        "accelerate-cpu",
        "accelerate's Accelerator gets cpu=True: without it, each rank would be a separate job",
        (Releases("accelerate", "1.13"), Releases("accelerate", until="0.21")),
        {"accelerate.state": "compat.cpu:imply_accelerator_cpu"},
        when=_NOT_SET, obstacle=_sets_cpu, finds_out=True,
    ),
    Adaptation(
        "cpu-device",
        "accelerate's device of a rank is cpu instead of cpu:N, to which Trainer would copy every weight",
        (Releases("accelerate", "0.29"),), {"accelerate.state": "compat.cpu:remove_device_index"},
        when="if the job has several ranks",
    ),
    Adaptation(
        "loss-scale", "Trainer scales only what the number of labels divides by ranks and accumulation steps",
        (Releases("transformers", "4.49"),), {_TRAINER: "compat.loss_scale:hook"},
        when="with several ranks or accumulation steps", upstream="huggingface/transformers#47688", finds_out=True,
    ),
    Adaptation(
        "offline-metrics", f"evaluate.load of {', '.join(offline_metrics.NAMES)} needs no network",
        (Releases("evaluate"),), {"evaluate": "compat.offline_metrics:hook"},
        when="if the script loads one of them", upstream="huggingface/evaluate#315",
    ),
    Adaptation(
        "telemetry", "transformers.utils.send_example_telemetry exists, and sends nothing",
        (_5_0,), {"transformers.utils": "compat.old_names:add"},
        when=_USED, upstream="huggingface/transformers#41168",
    ),
    Adaptation(
        "offline-mode", "transformers.utils.is_offline_mode exists, and calls huggingface_hub.is_offline_mode",
        (_5_0,), {"transformers.utils": "compat.old_names:add"}, when=_USED,
    ),
    Adaptation(
        "load-metric", "datasets.load_metric exists, and calls evaluate.load",
        (Releases("datasets", "3.0"),), {"datasets": "compat.old_names:add"},
        when=_USED, upstream="huggingface/datasets#6983",
    ),
    Adaptation(
        "auth-token", "use_auth_token is passed on as token, or dropped", (Releases("datasets", "3.0"), _5_0),
        {
            "datasets": "compat.old_arguments:rename_token",
            "transformers.modeling_utils": "compat.old_arguments:rename_token",
        },
        when=_USED,
    ),
    Adaptation(
        "torch-tpu", "transformers.is_torch_tpu_available exists, and calls is_torch_xla_available",
        (Releases("transformers", "4.51"),), {"transformers.utils.import_utils": "compat.old_names:add_lazily"},
        when=_USED,
    ),
    Adaptation(
        "hub-repository",
        "huggingface_hub.Repository and get_full_repo_name can be imported; a call raises an error with the fix",
        (_5_0,), dict.fromkeys(("huggingface_hub", "transformers.utils"), "compat.old_names:add"),
        when=_USED, upstream="huggingface/huggingface_hub#3346",
    ),
    Adaptation(
        "accelerator-names",
        "Accelerator.use_fp16 and DistributedType.TPU exist, and logging_dir is passed on as project_dir",
        (Releases("accelerate", "1.0"),),
        {
            "accelerate.utils.dataclasses": "compat.old_arguments:add_tpu",
            "accelerate.accelerator": "compat.old_arguments:hook_accelerator",
        },
        when=_USED,
    ),
    Adaptation(
        "moved-names", "names such as trainer.ALL_LAYERNORM_LAYERS can be imported from their old modules",
        (Releases("transformers", "4.31"),),  # the first of them; most since 5.0
        {
            **dict.fromkeys(old_names.NAMES["moved-names"], "compat.old_names:add"),
            NOW: "compat.old_names:find_deepspeed",
        },
        when=_USED,
    ),
    Adaptation(
        "adamw", "transformers.AdamW exists, and computes the steps of transformers 4",
        (Releases("transformers", "4.51"),),
        {
            "transformers.optimization": "compat.old_names:add",
            "transformers.training_args": "compat.old_optimizer:name_optimizer",
            "transformers.utils.import_utils": "compat.old_names:add_lazily",
        },
        when=_USED, upstream="huggingface/transformers#36177",
    ),
    Adaptation(
        "encode-plus",
        "tokenizers have encode_plus, batch_encode_plus and as_target_tokenizer, and know pad_to_max_length",
        (_5_0,), {"transformers.tokenization_utils_base": "compat.old_tokenizers:add_methods"},
        when="if the script calls them",
    ),
    Adaptation(
        "trainer-methods", "methods of Trainer that a script overrides get only the arguments that they accept",
        (_4_46,),
        {
            _TRAINER: "compat.trainer_methods:hook_trainer",
            "transformers.data.data_collator": "compat.trainer_methods:hook_collators",
        },
        when="if a subclass of Trainer overrides a method",
    ),
    Adaptation(
        "trainer-tokenizer",
        "tokenizer is processing_class: in Trainer(...), as Trainer's property, and for callbacks",
        (_5_0,),
        {
            **dict.fromkeys((_TRAINER, "transformers.trainer_seq2seq"), "compat.trainer_names:rename_tokenizer"),
            "transformers.trainer_callback": "compat.trainer_names:pass_tokenizer",
        },
        when=_USED, upstream="huggingface/transformers#41128",
    ),
    Adaptation(
        "trainer-names", "Trainer has the methods and attributes of transformers 4, such as _nested_gather",
        (_5_0,), {_TRAINER: "compat.trainer_names:add_removed"}, when="if the script uses one of them",
    ),
    Adaptation(
        "local-rank", "TrainingArguments.local_rank is the rank's own, as in transformers 4",
        (_5_0,), {"transformers.training_args": "compat.training_arguments:set_local_rank"},
        when="if the script reads it", upstream="huggingface/transformers#41382",
    ),
    *(_of_flag(flag) for flag in FLAGS if flag.gone),
    Adaptation(
        "ragged-batches", "an iterable data set may have batches of different lengths on several ranks",
        (_ACCELERATE,), {"accelerate.data_loader": "compat.ragged_batches:hook"},
        when="if the script trains with one", upstream="huggingface/accelerate#2023",
    ),
)  # fmt: skip
