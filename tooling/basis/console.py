"""Tables on standard output."""

from __future__ import annotations

from rich.console import Console


def console(width: int) -> Console:
    """A console for standard output. In a file or a pipe, lines are not wrapped before `width` characters."""
    result = Console()
    return result if result.is_terminal else Console(width=width)
