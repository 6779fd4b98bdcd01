"""How fast one core copies memory. Torch-free."""

from __future__ import annotations

import time

# Between DDP's bucket and the largest tensor that is measured; two of them are more than most caches hold.
COPY_BYTES = 64 << 20


class Copier:
    """Two buffers of COPY_BYTES, touched, so that the first copy meets real memory."""

    def __init__(self) -> None:
        self._source = memoryview(bytearray(b"\1") * COPY_BYTES)
        self._target = memoryview(bytearray(b"\2") * COPY_BYTES)

    def copy(self, times: int) -> float:
        """Seconds for so many copies by this thread: the C library's memcpy."""
        started = time.perf_counter()
        for _ in range(times):
            self._target[:] = self._source
        return time.perf_counter() - started
