"""Load the usual metrics of evaluate.load from the image instead of from the network.

evaluate downloads each metric's program from the hub, on every node, and runs it (huggingface/evaluate#315, #473).
The image computes NAMES by the same definitions, and rouge and sacrebleu with their packages. If another metric
cannot be downloaded, one line says which the image has. A program NAME/NAME.py in the working directory takes
precedence, as in evaluate.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any, Callable

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.cli.errors import UsageError, one_line
from cpu_train_stack.compat import measures
from cpu_train_stack.train.scores.texts import PACKAGES, can

# The hub's own names of evaluate's metrics begin with it.
_HUB = "evaluate-metric/"
NAMES = sorted(("glue", "roc_auc", "squad", "squad_v2", *measures.KINDS))


def hook(situation: Situation, module: Any) -> None:
    original = module.load
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def load(path: str, config_name: str | None = None, *args: Any, **options: Any) -> Any:
        name = path[len(_HUB) :] if path.startswith(_HUB) and not Path(path).exists() else path
        given = parameters.bind(path, config_name, *args, **options).arguments
        if name not in NAMES or given.get("revision") or _is_program(path):
            return _load(functools.partial(original, path, config_name, *args, **options), path)
        if name in PACKAGES and not can(name):
            raise UsageError(
                f"evaluate.load({path!r}) needs the package {PACKAGES[name]}, which this image does not have: "
                f"build it with ./inv build --with '{PACKAGES[name]}'"
            )
        from cpu_train_stack.compat.metrics import METRICS

        situation.report(f"evaluate.load({path!r}) uses the image's metric: nothing is downloaded")
        named = given.pop("init_kwargs", {})
        options = {**given, **named}
        for unused in ("path", "config_name", "module_type", "download_config", "download_mode", "revision"):
            options.pop(unused, None)
        # Files are only necessary if several processes compute one metric together.
        options.setdefault("keep_in_memory", options.get("num_process", 1) == 1)
        return METRICS[name](config_name=config_name, **options)

    module.load = module.loading.load = load


def _is_program(path: str) -> bool:
    """Whether evaluate loads a local file. A folder without one, such as of a data set, is not a metric."""
    return Path(path, f"{Path(path).name}.py").is_file()


def _load(load: Callable[[], Any], path: str) -> Any:
    """evaluate's own metric."""
    try:
        return load()
    except (OSError, ConnectionError) as error:  # a file that is not found, on the hub or because of the hub
        if "/" in path or Path(path).exists():
            raise
        raise UsageError(
            f"evaluate.load({path!r}): the image does not have this metric, and it cannot be downloaded "
            f"({one_line(error)[:120]}): use one of {', '.join(NAMES)}, or put the metric's folder, "
            f"huggingface/evaluate's metrics/{path}, into the working folder"
        ) from error
