"""A traceback as its user wrote it: without the frames of this package and of what starts a script. Torch-free."""

from __future__ import annotations

import os
from types import FrameType, TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120 - compared with a frame's text


def strip(error: BaseException, is_script: bool) -> None:
    """Takes the frames away that are not the job's, from the error and from all that it came of.

    `is_script`: the job is a user's, and no frame of this package says anything; else only those that lead to the
    job go. An error that is raised in this package keeps its frames: they are what is to be mended.
    """
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        one = queue.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _stripped(one.__traceback__, is_script)
        queue += [one.__cause__, one.__context__]


def position(error: BaseException, is_script: bool) -> str:
    """Where the job was, as `script.py:12`: the last line outside of libraries. Empty where there is none."""
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if not _is_library(name) and not (is_script and _is_ours(name)):
            place = f"{name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def _stripped(traceback: TracebackType | None, is_script: bool) -> TracebackType | None:
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    while frames and _leads(frames[0].tb_frame):
        frames.pop(0)
    if is_script and frames and not _is_ours(_file(frames[-1].tb_frame)):
        frames = [one for one in frames if not _is_ours(_file(one.tb_frame))]
    made: TracebackType | None = None
    for one in reversed(frames):
        made = TracebackType(made, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return made


def _leads(frame: FrameType) -> bool:
    """The worker's own frames and runpy's, which stand before those of the job."""
    name = _file(frame)
    return _is_runpy(name) or (_is_ours(name) and os.sep not in name[len(_PACKAGE) :])


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _is_ours(name: str) -> bool:
    return name.startswith(_PACKAGE)


def _is_runpy(name: str) -> bool:
    return name == "<frozen runpy>" or name.endswith(os.sep + "runpy.py")


def _is_library(name: str) -> bool:
    return any(part in name for part in ("site-packages", "dist-packages", "<frozen ")) or _is_runpy(name)
