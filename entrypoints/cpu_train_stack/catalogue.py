"""The list of all adaptations, how users turn them off, and the output of `run --explain`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from cpu_train_stack import contract
from cpu_train_stack.adapt.adaptation import PACKAGES, Adaptation, Situation
from cpu_train_stack.cli import packages
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.compat.table import COMPAT
from cpu_train_stack.speed.table import SPEED_UPS

EVERYTHING = "all"
ALL = (*COMPAT, *SPEED_UPS)


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
