"""What the tasks of several modules have in common."""

from __future__ import annotations

from functools import partial

from invoke.tasks import task as invoke_task

# One-letter flags made from the first letters of long ones are a riddle, not a help.
task = partial(invoke_task, auto_shortflags=False)

PIN_HELP = "a row of ./inv matrix; the default pin needs no flag"
SET_HELP = "PACKAGE=VERSION instead of the row's, torch=2.14.1 for example; may be repeated"
TORCH_SOURCE_HELP = "row: the CPU build; default: the build that the default index has (CUDA, larger by gigabytes)"
IMAGE_LOCK_HELP = "an image.lock.json of ./inv push: that image, by its digest, instead of one that is built"
