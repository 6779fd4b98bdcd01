"""The list of all adaptations, how users turn them off, and the output of `run --explain`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from entrypoints import contract
from entrypoints.adapt import (
    cpu,
    loss_scale,
    no_padding,
    offline_metrics,
    old_apis,
    process_group,
    training_arguments,
)
from entrypoints.adapt.adaptation import PACKAGES, Adaptation, Situation
from entrypoints.cli import packages
from entrypoints.cli.errors import UsageError

EVERYTHING = "all"

ALL: tuple[Adaptation, ...] = (
    *process_group.ADAPTATIONS,
    *cpu.ADAPTATIONS,
    *loss_scale.ADAPTATIONS,
    *offline_metrics.ADAPTATIONS,
    *old_apis.ADAPTATIONS,
    *training_arguments.ADAPTATIONS,
    *no_padding.ADAPTATIONS,
)


def switched_off(flags: Iterable[str], environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The adaptations that --no-adapt and the variable name, separated by commas. Raises UsageError for others."""
    known = [adaptation.name for adaptation in ALL]
    asked = [name.strip() for given in (*flags, environ.get(contract.NO_ADAPT, "")) for name in given.split(",")]
    off = {name for name in asked if name}
    for name in sorted(off - {EVERYTHING, *known}):
        raise UsageError(
            f"no adaptation is called {name!r} (--no-adapt, {contract.NO_ADAPT}): see run --explain for the names"
        )
    return frozenset(known) if EVERYTHING in off else frozenset(off)


def install(situation: Situation, off: frozenset[str]) -> None:
    """Hook the modules of all adaptations that are not turned off."""
    for adaptation in ALL:
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
        why = "turned off" if is_off else verdict.why
        lines += [f"{state:3} {adaptation.name:28} {adaptation.summary}", f"    {'':28} {why}"]
    return "\n".join(lines)
