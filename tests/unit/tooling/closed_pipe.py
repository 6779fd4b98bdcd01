"""Standard output that nobody reads, as that of `./inv launch … | head` after ten lines."""

import io


class ClosedPipe(io.BytesIO):
    """Fails as a pipe does whose other end is closed."""

    def flush(self) -> None:
        raise BrokenPipeError
