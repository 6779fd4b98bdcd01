"""What transformers 5 removed from Trainer, and the arguments `tokenizer` that it renamed.

`tokenizer` has been called processing_class since 4.46. 5.0 accepts only the new name, and removed the property
and the methods and attributes of Trainer in REMOVED and _ABSENT.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, Callable

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import around, before_method
from cpu_train_stack.compat.trainer_methods import own_functions

_NEW, _OLD = "processing_class", "tokenizer"
_STEPS = "current_gradient_accumulation_steps"
# The places of Trainer's arguments before 4.46, without compute_loss_func and optimizer_cls_and_kwargs.
_PLACES = (
    *("model", "args", "data_collator", "train_dataset", "eval_dataset", _OLD, "model_init", "compute_metrics"),
    *("callbacks", "optimizers", "preprocess_logits_for_metrics"),
)


def rename_tokenizer(situation: Situation, module: Any) -> None:
    """Let Trainer, or Seq2SeqTrainer in its own module, accept `tokenizer` if it has processing_class instead."""
    trainer = "Seq2SeqTrainer" if hasattr(module, "Seq2SeqTrainer") else "Trainer"
    owner = getattr(module, trainer)
    names = inspect.signature(owner.__init__).parameters

    def rename(_trainer: Any, options: dict[str, Any]) -> None:
        if _OLD in options and _NEW not in options:
            options[_NEW] = options.pop(_OLD)
            situation.report(f"{trainer}({_OLD}=...) is now {trainer}({_NEW}=...)")

    if _OLD not in names and _NEW in names:
        before_method(owner, "__init__", rename)
        _accept_old_places(owner, trainer, situation)
    if trainer == "Trainer":
        add_tokenizer(situation, owner, trainer)


def _accept_old_places(owner: Any, trainer: str, situation: Situation) -> None:
    @around(owner, "__init__")
    def create(original: Any, self: Any, *args: Any, **options: Any) -> None:
        # Callbacks are a list, two optimizers a tuple, and compute_metrics gets one argument: at their old places,
        # there is now another argument.
        is_old = any(map(_is_metrics, args[7:8])) or any(isinstance(one, list) for one in args[8:9])
        if is_old or any(isinstance(one, tuple) for one in args[9:10]):
            situation.report(f"{trainer}(...) has the places of its arguments before transformers 4.46")
            options.update(zip(_PLACES[5:], args[5:]))
            args = args[:5]
        original(self, *args, **options)


def _is_metrics(function: Any) -> bool:
    """Whether it is a compute_metrics, and no compute_loss_func, which gets outputs, labels and their count."""
    try:
        inspect.signature(function).bind(None, None, num_items_in_batch=None)
    except TypeError:
        return callable(function)
    except ValueError:  # it has no signature
        pass
    return False


def add_tokenizer(situation: Situation, owner: Any, name: str) -> None:
    """Let scripts read and set `tokenizer` of a class that has processing_class instead."""
    if hasattr(owner, _OLD) or _NEW not in inspect.signature(owner.__init__).parameters:
        return

    def read(self: Any) -> Any:
        situation.report(f"{name}.{_OLD} is now {name}.{_NEW}")
        return getattr(self, _NEW)

    def write(self: Any, value: Any) -> None:
        setattr(self, _NEW, value)

    setattr(owner, _OLD, property(read, write))


def pass_tokenizer(situation: Situation, module: Any) -> None:
    """Callbacks get `tokenizer` too. `module`: transformers.trainer_callback."""
    handler = module.CallbackHandler
    if _NEW not in inspect.signature(handler.__init__).parameters:
        return
    events = {name for name in vars(module.TrainerCallback) if name.startswith("on_")}
    changed: set[Any] = set()

    @around(handler, "add_callback")
    def add_callback(original: Any, self: Any, callback: Any) -> None:
        original(self, callback)
        for owner in type(self.callbacks[-1]).__mro__:
            for name, function in own_functions(owner):
                if name in events and function not in changed:
                    setattr(owner, name, _with_tokenizer(situation, function))
                    changed.add(vars(owner)[name])

    add_tokenizer(situation, handler, "CallbackHandler")


def _with_tokenizer(situation: Situation, function: Any) -> Any:
    own = inspect.signature(function).parameters
    takes_rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
    if _OLD not in own and not takes_rest:
        return function

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if _NEW in options:
            options.setdefault(_OLD, options[_NEW])
        if _OLD in own:
            situation.report(f"the callbacks' {_OLD} is now called {_NEW}")
        if not takes_rest:
            options = {name: value for name, value in options.items() if name in own}
        return function(*args, **options)

    return call


def _nested_gather(self: Any, tensors: Any, name: Any = None) -> Any:
    from transformers.trainer_pt_utils import distributed_concat

    del name
    return tensors if tensors is None or self.args.world_size == 1 else distributed_concat(tensors)


def _gather_and_numpify(self: Any, tensors: Any, name: Any = None) -> Any:
    from transformers.trainer_pt_utils import nested_numpify

    return None if tensors is None else nested_numpify(_nested_gather(self, tensors, name))


def _pad_across_processes(self: Any, tensor: Any, pad_index: int = -100) -> Any:
    return self.accelerator.pad_across_processes(tensor, dim=1, pad_index=pad_index)


def _sorted_checkpoints(
    self: Any, output_dir: Any = None, checkpoint_prefix: str = "checkpoint", use_mtime: bool = False
) -> Any:
    from transformers.trainer_utils import sort_checkpoints

    best = self.state.best_model_checkpoint
    return sort_checkpoints(output_dir or self.args.output_dir, checkpoint_prefix, use_mtime, best)


def _rotate_checkpoints(self: Any, use_mtime: bool = False, output_dir: Any = None) -> None:
    from transformers.trainer_utils import rotate_checkpoints

    best, limit = self.state.best_model_checkpoint, self.args.save_total_limit
    rotate_checkpoints(output_dir or self.args.output_dir, limit, best, use_mtime)


def _groups(self: Any) -> Any:
    if self.optimizer is None:
        raise ValueError("Trainer's optimizer is None: create the optimizer first")
    return self.optimizer.param_groups


def _get_optimizer_group(self: Any, param: Any = None) -> Any:
    groups = _groups(self)
    if param is None:
        return [group["params"] for group in groups]
    return next((group for group in groups if any(one is param for one in group["params"])), None)


def _num_tokens(_self: Any, train_dl: Any, max_steps: int | None = None) -> int:
    counts = (batch["input_ids"].numel() for batch in train_dl)
    return sum(counts) if max_steps is None else next(counts, 0) * max_steps


def _same_model(_self: Any, model: Any, *_args: Any, **_options: Any) -> Any:
    return model


# What 5.0 and earlier releases removed from Trainer, and what replaces it.
REMOVED: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "_nested_gather": ("trainer_pt_utils.distributed_concat", _nested_gather),
    "_gather_and_numpify": ("trainer_pt_utils.distributed_concat and nested_numpify", _gather_and_numpify),
    "_pad_across_processes": ("accelerator.pad_across_processes", _pad_across_processes),
    "prediction_loop": ("evaluation_loop", lambda self, *args, **options: self.evaluation_loop(*args, **options)),
    "_sorted_checkpoints": ("trainer_utils.sort_checkpoints", _sorted_checkpoints),
    "_rotate_checkpoints": ("trainer_utils.rotate_checkpoints", _rotate_checkpoints),
    "get_learning_rates": ("optimizer.param_groups", lambda self: [group["lr"] for group in _groups(self)]),
    "get_optimizer_group": ("optimizer.param_groups", _get_optimizer_group),
    "get_num_trainable_parameters": (
        "a sum over model.parameters()",
        lambda self: sum(one.numel() for one in self.model.parameters() if one.requires_grad),
    ),
    "num_tokens": ("a sum over the batches", _num_tokens),
    "torch_jit_model_eval": ("gone: the model is not traced", _same_model),
    "ipex_optimize_model": ("gone: torch includes IPEX's optimizations", _same_model),
}
# Attributes of older training steps (`if self.use_apex: ...`), as they were without a GPU.
_ABSENT = (
    *("use_apex", "use_amp", "use_cuda_amp", "use_cpu_amp", "do_grad_scaling", "scaler", "sharded_ddp", "fsdp"),
    *("use_tune_checkpoints", "is_tp_enabled", "_past", "amp_dtype"),
)


class _Absent:
    def __init__(self, situation: Situation, name: str) -> None:
        self.situation, self.name = situation, name
        self.value = None if name in ("scaler", "sharded_ddp", "fsdp", "_past", "amp_dtype") else False

    def __get__(self, owner: object, kind: object = None) -> Any:
        self.situation.report(f"Trainer.{self.name} was removed: the script reads {self.value}")
        return self.value


def add_removed(situation: Situation, module: Any) -> None:
    """Let scripts call and read what transformers removed from Trainer. `module`: transformers.trainer."""
    owner = module.Trainer

    def reported(name: str, now: str, function: Callable[..., Any]) -> Any:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            situation.report(f"Trainer.{name} was removed: it is {now}")
            return function(self, *args, **options)

        return call

    for name, (now, function) in REMOVED.items():
        if not hasattr(owner, name):
            setattr(owner, name, reported(name, now, function))
    if not hasattr(owner, _STEPS):  # a script's own loop calls training_step before `train` has set it
        steps = functools.cached_property(lambda self: self.args.gradient_accumulation_steps)
        steps.__set_name__(owner, _STEPS)
        setattr(owner, _STEPS, steps)
    for name in _ABSENT:
        if not hasattr(owner, name):
            setattr(owner, name, _Absent(situation, name))
