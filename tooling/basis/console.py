"""Tables, or one JSON document, on standard output."""

from typing import Annotated

from rich.console import Console

JsonOption = Annotated[bool, "print one JSON document on standard output instead of a table"]


def console(width: int) -> Console:
    """A console for standard output. In a file or a pipe, lines are not wrapped before `width` characters."""
    result = Console()
    return result if result.is_terminal else Console(width=width)
