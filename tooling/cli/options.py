"""What the tasks of several modules have in common."""

from __future__ import annotations

from functools import partial

from invoke.tasks import task as invoke_task

# One-letter flags derived from the long ones would be cryptic.
task = partial(invoke_task, auto_shortflags=False)

PIN_HELP = "a row of ./inv matrix; the default pin needs no flag"
SET_HELP = "PACKAGE=VERSION to replace the row's version, torch=2.14.1 for example; may be repeated"
TORCH_SOURCE_HELP = "row: the CPU build; default: the build on the default index (CUDA, larger by gigabytes)"
IMAGE_LOCK_HELP = "run the image named in this image.lock.json of ./inv push, by digest, instead of building one"
