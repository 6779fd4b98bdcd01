"""torchrun's LaunchConfig, whose fields differ between versions of torch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

# Younger than a version that a pin has: the agent does without. shutdown_timeout, after 2.8: 30 s before.
_YOUNG = ("local_addr", "shutdown_timeout")


def config(log_folder: str, **options: Any) -> LaunchConfig:
    """The options as this torch takes them; files of the ranks' errors go to `log_folder`."""
    from torch.distributed.elastic import multiprocessing
    from torch.distributed.launcher.api import LaunchConfig

    known = {field.name for field in dataclasses.fields(LaunchConfig)}
    taken = {name: value for name, value in options.items() if name in known or name not in _YOUNG}
    if "logs_specs" in known:  # since 2.3
        return LaunchConfig(logs_specs=multiprocessing.DefaultLogsSpecs(log_dir=log_folder), **taken)
    return LaunchConfig(log_dir=log_folder, **taken)
