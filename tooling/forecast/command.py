"""`./inv plan-cluster`: predicts the time of a job on N nodes, and recommends a number of nodes."""

import json
import sys
from pathlib import Path

from rich.table import Table

from entrypoints.page import render
from tooling.basis.console import console
from tooling.basis.say import say
from tooling.forecast import page, texts
from tooling.forecast.request import Plan, Request, document, make

TABLE_WIDTH = 160


def run(request: Request, as_json: bool, html: str | None) -> None:
    """Print the forecast. `html`: a file for the page. Raises UsageError."""
    plan = make(request)
    if html:
        render.save(page.page(request, plan), Path(html))
    if as_json:
        sys.stdout.write(json.dumps(document(request, plan), indent=2) + "\n")
        return
    console(TABLE_WIDTH).print(table(request, plan))
    print(texts.advice(request, plan))
    for warning in plan.warnings:
        say(f"warning: {warning}")


def table(request: Request, plan: Plan) -> Table:
    """A row for each number of nodes."""
    shown = Table(title=texts.title(request, plan), title_justify="left", box=None, padding=(0, 2, 0, 0))
    columns, rows = texts.table(plan)
    for name in columns:
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    return shown
