"""The list of all adaptations, how users turn them off, and the output of `run --explain`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from cpu_train_stack import contract
from cpu_train_stack.adapt.adaptation import PACKAGES, Adaptation, Situation
from cpu_train_stack.cli import packages
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.compat import (
    cpu,
    launcher_variables,
    loss_scale,
    offline_metrics,
    old_apis,
    old_transformers,
    process_group,
    ragged_batches,
    single_rank,
    trainer_methods,
    trainer_names,
    training_arguments,
)
from cpu_train_stack.speed import (
    balanced_ranks,
    decoder_layers,
    encoder_layers,
    gradients,
    lora,
    no_padding,
    output_layer,
    progress,
    step_records,
)

EVERYTHING = "all"

# What makes the training faster or records it: `train` has these too.
SPEED_UPS: tuple[Adaptation, ...] = (
    *no_padding.ADAPTATIONS,
    *balanced_ranks.ADAPTATIONS,
    *gradients.ADAPTATIONS,
    *output_layer.ADAPTATIONS,
    *decoder_layers.ADAPTATIONS,
    *encoder_layers.ADAPTATIONS,
    *lora.ADAPTATIONS,
    *progress.ADAPTATIONS,
    *step_records.ADAPTATIONS,
)
# `train` has flags of its own for these: --train_sampling_strategy and --ddp_comm_hook.
ALWAYS_IN_TRAIN = frozenset({balanced_ranks.NAME, gradients.ROWS.name})

ALL: tuple[Adaptation, ...] = (
    *process_group.ADAPTATIONS,
    *single_rank.ADAPTATIONS,
    *launcher_variables.ADAPTATIONS,
    *cpu.ADAPTATIONS,
    *loss_scale.ADAPTATIONS,
    *offline_metrics.ADAPTATIONS,
    *old_apis.ADAPTATIONS,
    *old_transformers.ADAPTATIONS,
    *trainer_methods.ADAPTATIONS,
    *trainer_names.ADAPTATIONS,
    *training_arguments.ADAPTATIONS,
    *ragged_batches.ADAPTATIONS,
    *SPEED_UPS,
)


def switched_off(
    no_adapt: Iterable[str], adapt: Iterable[str] = (), environ: Mapping[str, str] = os.environ
) -> frozenset[str]:
    """The adaptations that --no-adapt or the variable turns off, and those that only --adapt turns on.

    Each text may hold several names, separated by commas. Raises UsageError for an unknown name.
    """
    known = frozenset(adaptation.name for adaptation in ALL)
    off, on = _names((*no_adapt, environ.get(contract.NO_ADAPT, ""))), _names(adapt)
    if unknown := sorted((off - {EVERYTHING} | on) - known):
        raise UsageError(
            f"no adaptation is called {', '.join(map(repr, unknown))} (--adapt, --no-adapt, {contract.NO_ADAPT}): "
            "see run --explain for the names"
        )
    return known if EVERYTHING in off else off | ({one.name for one in ALL if not one.is_default} - on)


def _names(given: Iterable[str]) -> frozenset[str]:
    return frozenset(name.strip() for text in given for name in text.split(",")) - {""}


def install(situation: Situation, off: frozenset[str], adaptations: Iterable[Adaptation] = ALL) -> None:
    """Hook the modules of the adaptations that are not turned off."""
    for adaptation in adaptations:
        if adaptation.name not in off:
            adaptation.install(situation)


def versions() -> dict[str, str]:
    """The installed versions of the packages that adaptations check."""
    return packages.versions(PACKAGES)


def explain(situation: Situation, off: frozenset[str]) -> str:
    """The text of `run --explain`: each adaptation, its effect, and whether it applies."""
    lines = [
        "Adaptations that `run` makes for unmodified scripts. Turn off one with --no-adapt NAME, or all with "
        "--no-adapt all.",
        "",
    ]
    for adaptation in ALL:
        verdict = adaptation.check(situation)
        is_off = adaptation.name in off
        state = "off" if is_off else "on " if verdict.applies else "-  "
        why = verdict.why if not is_off else "turned off" if adaptation.is_default else "turn on with --adapt"
        lines += [f"{state:3} {adaptation.name:28} {adaptation.summary}", f"    {'':28} {why}"]
    return "\n".join(lines)
