"""Shows for each adaptation, with the installed libraries and without the adaptation, whether it is still needed.

Run with plain Python: main.py [NAMES]. Prints the versions and a row for each adaptation, as JSON.

A canary is a function that returns whether the fault is there. It raises an error if what the adaptation hooks is
not there. Each canary runs in a process of its own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import adapted_names
import private_names
import speed_ups
import surroundings_of_ranks
import torch

from cpu_train_stack import catalogue
from cpu_train_stack.adapt.adaptation import SEEN, Adaptation, Situation
from cpu_train_stack.compat import training_arguments

NEEDED, NOT_NEEDED = "needed", "no longer needed: remove"
BROKEN, ABSENT = "hook moved: broken", "not in this release"
# Of one canary.
LIMIT_SECONDS = 120.0
CANARIES: dict[str, Callable[[], bool]] = {
    **surroundings_of_ranks.CANARIES,
    **adapted_names.CANARIES,
    **speed_ups.CANARIES,
    private_names.NAME: private_names.are_there,
    **{
        name: functools.partial(adapted_names.is_refused, flag)
        for name, flag in training_arguments.OLD_FIELDS.items()
    },
}


def row(adaptation: Adaptation, situation: Situation) -> dict[str, Any]:
    """The result of an adaptation's canary."""
    problems = [one.problem(situation) for one in adaptation.releases]
    releases = [f"{one.package} {one.since or 'any'} to {one.until or 'now'}" for one in adaptation.releases]
    seen = {one.package: SEEN[one.package] for one in adaptation.releases}
    found = (ABSENT, str(problems[0])) if problems and all(problems) else observed(CANARIES[adaptation.name])
    return {
        "name": adaptation.name, "releases": releases, "seen": seen, "upstream": adaptation.upstream,
        "result": found[0], "detail": found[1],
    }  # fmt: skip


def observed(canary: Callable[[], bool]) -> tuple[str, str]:
    """The result of a canary in a forked process, and why it is broken."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_run, args=(canary, sender))
    process.start()
    sender.close()
    found = (BROKEN, f"no answer within {LIMIT_SECONDS:.0f} s")
    with contextlib.suppress(EOFError):
        found = receiver.recv() if receiver.poll(LIMIT_SECONDS) else found
    process.kill()
    process.join()
    return found


def _run(canary: Callable[[], bool], sender: Any) -> None:
    os.dup2(2, 1)  # only the result is written to standard output
    try:
        sender.send((NEEDED, "") if canary() else (NOT_NEEDED, ""))
    except BaseException as error:  # noqa: BLE001 - whatever a new release raises
        sender.send((BROKEN, f"{type(error).__name__}: {error}"[:300]))
    os._exit(0)


def rows(names: list[str]) -> Iterator[dict[str, Any]]:
    situation = Situation((), catalogue.versions(), "gloo")
    for adaptation in catalogue.ALL:
        if not names or adaptation.name in names:
            yield row(adaptation, situation)
    if not names or private_names.NAME in names:
        yield row(private_names.ROW, situation)


if __name__ == "__main__":
    torch.set_num_threads(1)
    importlib.import_module("transformers.trainer_seq2seq")  # once, for all canaries
    found = list(rows(sys.argv[1:]))
    print(json.dumps({"versions": catalogue.versions(), "rows": found}))
