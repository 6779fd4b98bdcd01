"""All adaptations, in the order in which they are listed; those that are switched off; the list for people."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from entrypoints import contract
from entrypoints.adapt import (
    cpu,
    cpu_device,
    loss_scale,
    offline_metrics,
    old_data,
    old_names,
    process_group,
    removed_names,
)
from entrypoints.adapt import flags as arguments
from entrypoints.adapt.adaptation import PACKAGES, Adaptation, Situation
from entrypoints.cli import packages
from entrypoints.cli.errors import UsageError

# Names separated by commas, for those who cannot change the command line.
EVERYTHING = "all"

ALL: tuple[Adaptation, ...] = (
    *process_group.ADAPTATIONS,
    *cpu.ADAPTATIONS,
    *cpu_device.ADAPTATIONS,
    *loss_scale.ADAPTATIONS,
    *offline_metrics.ADAPTATIONS,
    *removed_names.ADAPTATIONS,
    *old_data.ADAPTATIONS,
    *old_names.ADAPTATIONS,
    *arguments.ADAPTATIONS,
)


def switched_off(flags: Iterable[str], environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The names of --no-adapt and of the variable. Raises UsageError for one that no adaptation has."""
    known = [one.name for one in ALL]
    asked = [name.strip() for given in (*flags, environ.get(contract.NO_ADAPT, "")) for name in given.split(",")]
    off = {name for name in asked if name}
    for name in sorted(off - {EVERYTHING, *known}):
        raise UsageError(
            f"run: no adaptation is called {name!r} (--no-adapt, {contract.NO_ADAPT}): run --explain lists them"
        )
    return frozenset(known) if EVERYTHING in off else frozenset(off)


def install(situation: Situation, off: frozenset[str]) -> None:
    """Hooks all that are not switched off."""
    for one in ALL:
        if one.name not in off:
            one.install(situation)


def versions() -> dict[str, str]:
    """What is installed of the packages that adaptations are about."""
    return packages.versions(PACKAGES)


def explain(situation: Situation, off: frozenset[str]) -> str:
    """Each adaptation with what it does and whether it would apply."""
    return "\n".join(_lines(situation, off))


def _lines(situation: Situation, off: frozenset[str]) -> Sequence[str]:
    lines = [
        "What `run` adapts for unmodified scripts. Turn off one with --no-adapt NAME, or all with --no-adapt all.",
        "",
    ]
    for one in ALL:
        verdict = one.look(situation)
        state = "off" if one.name in off else "on " if verdict.applies else "-  "
        lines += [f"{state:3} {one.name:28} {one.summary}", f"    {'':28} {_why(one, off, verdict.why)}"]
    return lines


def _why(one: Adaptation, off: frozenset[str], why: str) -> str:
    return "switched off" if one.name in off else why
