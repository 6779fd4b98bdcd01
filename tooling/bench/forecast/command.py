"""`./inv plan-cluster`: predicts the time of a job on N nodes, and recommends a number of nodes."""

import json
import sys
from pathlib import Path

from cpu_train_stack.page import render
from tooling.basis.console import console, plain_table
from tooling.basis.files import write_output
from tooling.basis.say import say
from tooling.bench.forecast import page, texts
from tooling.bench.forecast.request import ForecastRequest, document, make

TABLE_WIDTH = 160


def run(request: ForecastRequest, as_json: bool, html: str | None) -> None:
    """Print the forecast. `html`: a file for the page. Raises UsageError."""
    plan = make(request)
    if html:
        write_output(Path(html), render.html_text(page.page(request, plan)), "--html")
    if as_json:
        sys.stdout.write(json.dumps(document(request, plan), indent=2) + "\n")
        return
    columns, rows = texts.table(plan)
    table = plain_table(columns, (), texts.title(request, plan), gap=2)
    for row in rows:
        table.add_row(*row)
    console(TABLE_WIDTH).print(table)
    print(texts.advice(request, plan))
    for warning in plan.warnings:
        say(f"warning: {warning}")
