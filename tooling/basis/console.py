"""The forms of a result: a table or one JSON document on standard output, and a page with pictures."""

from collections.abc import Container, Iterable
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cpu_train_stack.cli.printable import printable
from cpu_train_stack.page import render

JsonOption = Annotated[bool, "print one JSON document on standard output instead of a table"]
HtmlOption = Annotated[str | None, f"{render.HTML_HELP}: the file to write"]


class PrintableConsole(Console):
    """Shows strings, also those of tables, without control characters: they may be those of a file or a job."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def console(width: int) -> Console:
    """A console for standard output. In a file or a pipe, lines are not wrapped before `width` characters.

    Brackets and colons in texts are no markup: `[torch]` stays as it is.
    """
    return PrintableConsole(width=None if Console().is_terminal else width, markup=False, emoji=False)


def plain_table(columns: Iterable[str], left: Container[str], title: str | None = None, gap: int = 1) -> Table:
    """A table for narrow terminals: no borders, `gap` spaces between columns. `left`: columns without numbers."""
    shown = Table(title=title, title_justify="left", box=None, padding=(0, gap, 0, 0))
    for name in columns:
        shown.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return shown
