"""How fast one core copies memory. Torch-free."""

from __future__ import annotations

import time


class Copier:
    """A buffer of `size` bytes, touched, so that the first copy meets real memory."""

    def __init__(self, size: int) -> None:
        self.copied = size // 2
        whole = memoryview(bytearray(b"\1\2") * self.copied)
        self._source, self._target = whole[: self.copied], whole[self.copied :]

    def copy(self, times: int) -> float:
        """Seconds for so many copies of one half onto the other by this thread: the C library's memcpy."""
        started = time.perf_counter()
        for _ in range(times):
            self._target[:] = self._source
        return time.perf_counter() - started
