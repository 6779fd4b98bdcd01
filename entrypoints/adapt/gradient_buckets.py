"""Keep each gradient of Trainer's model once, in the buckets that DistributedDataParallel (DDP) exchanges.

By default, DDP copies each gradient into a bucket, exchanges the bucket and copies the result back, so gradients
take their memory twice (0.4 GB more per rank for BERT-base). With DDP's `gradient_as_bucket_view`, gradients are
views of the buckets, with the same values.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from entrypoints.adapt.adaptation import Adaptation, Situation, on_import, since
from entrypoints.cli import packages

_NAME = "gradient-buckets"
_check = since(
    "transformers", "4.46.0", "if Trainer trains with several ranks", "not tested with transformers before 4.46"
)


def share(trainer: Any) -> None:
    """Make the gradients of a Trainer's model views of the buckets. Call before accelerate creates DDP.

    Does nothing after an import of IPEX, whose optimizers were not tested with views.
    """
    options = trainer.accelerator.ddp_handler
    if options is not None and packages.IPEX not in sys.modules:
        options.gradient_as_bucket_view = True


def _hook(situation: Situation, module: Any) -> None:
    if not _check(situation).applies:
        return
    original = module.Trainer._wrap_model  # the last method of Trainer before accelerate creates DDP

    @functools.wraps(original)
    def wrap(self: Any, *arguments: Any, **options: Any) -> Any:
        wrapped = original(self, *arguments, **options)
        share(self)
        return wrapped

    module.Trainer._wrap_model = wrap


ADAPTATIONS = (
    Adaptation(
        _NAME, "Trainer stores gradients once, in the memory that ranks exchange",
        _check, on_import("transformers.trainer", _hook),
    ),
)  # fmt: skip
