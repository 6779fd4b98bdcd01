"""The forms of a result: a table or one JSON document on standard output, and a page with pictures."""

from typing import Annotated

from rich.console import Console

from entrypoints.page import render

JsonOption = Annotated[bool, "print one JSON document on standard output instead of a table"]
HtmlOption = Annotated[str | None, f"{render.HTML_HELP}: the file to write"]


def console(width: int) -> Console:
    """A console for standard output. In a file or a pipe, lines are not wrapped before `width` characters."""
    result = Console()
    return result if result.is_terminal else Console(width=width)
