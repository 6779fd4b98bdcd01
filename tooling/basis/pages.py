"""HTML pages of --html."""

from pathlib import Path
from typing import Annotated

from entrypoints.cli import errors
from entrypoints.page import render
from entrypoints.page.blocks import Page
from tooling.basis.errors import UsageError

HtmlOption = Annotated[str | None, f"{render.HTML_HELP}: the file to write"]


def save(page: Page, file: str) -> None:
    """Raises UsageError if the file cannot be written."""
    try:
        render.save(page, Path(file))
    except errors.UsageError as error:
        raise UsageError(str(error)) from error
