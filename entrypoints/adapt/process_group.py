"""A script's own init_process_group returns the group that exists, once.

torch refuses to make the default group twice, and a script for torchrun makes it itself. On CPUs there is one
group that it can mean; what it asks for beyond the names of backends has to be what this rank is.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from entrypoints.adapt.adaptation import Adaptation, Situation, Verdict
from entrypoints.cli.errors import UsageError
from entrypoints.cli.import_hooks import after_import

_NAME = "process-group"


def _hook(situation: Situation, module: ModuleType) -> None:
    original = module.init_process_group
    adopted = False

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> None:
        nonlocal adopted
        if adopted or not module.is_initialized():
            original(backend, *args, **options)
            return
        adopted = True
        for name, ours in (("rank", situation.rank), ("world_size", situation.world_size)):
            asked = options.get(name, -1)
            if asked not in (-1, None, ours):
                raise UsageError(
                    f"the script calls init_process_group({name}={asked}), but the launcher gave this process "
                    f"{name} {ours}: let the script read it from the environment (RANK, WORLD_SIZE)"
                )
        running = module.get_backend()
        if backend is not None and running not in str(backend).lower().replace(",", ":").split(":"):
            situation.say(
                _NAME,
                f"the script asked for backend {backend!s}, the group that runs is {running} (run --backend)",
            )
        if options.get("timeout") is not None:
            situation.say(_NAME, "the timeout of init_process_group is that of run --timeout")

    module.init_process_group = init_process_group  # type: ignore[attr-defined]
    module.distributed_c10d.init_process_group = init_process_group


def _look(situation: Situation) -> Verdict:
    if "torch" not in situation.versions:
        return Verdict(False, "torch is not installed")
    return Verdict(True, "where the script calls it")


ADAPTATIONS = (
    Adaptation(
        _NAME,
        "the script's own init_process_group returns the group that exists",
        _look,
        lambda situation: after_import("torch.distributed", functools.partial(_hook, situation)),
    ),
)
