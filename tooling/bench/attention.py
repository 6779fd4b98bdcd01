"""`./inv bench attention`: this project's kernels next to torch's, and whether ranks use the faster one."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from invoke.exceptions import Exit
from rich.table import Table

from cpu_train_stack.cli.say import say
from cpu_train_stack.machine.cpus import format_cpu_list
from tooling.basis.console import JsonOption
from tooling.basis.figures import terminal_table
from tooling.bench import report, runner
from tooling.bench.runner import CpusOption
from tooling.image.choice import Choice

COMMAND = ("run", "--quiet", f"{runner.FOLDER}/benchmarks/attention.py")
# A kernel is the faster one if the other takes more than this many times as long. Less is noise.
NOISE = 1.1
COLUMNS = {
    "rows x heads x tokens x features": "{rows} x {heads} x {tokens} x {features}{causal:, causal|}",
    "dropout": "{dropout}",
    "passes": "{trains:forward and backward|forward}",
    "torch": "{torch:ms}",
    "ours": "{ours:ms}",
    "torch / ours": "{ratio}",
    "used": "{uses_ours:ours|torch}{slower:, the slower one|}",
}


@dataclass(frozen=True)
class AttentionOptions:
    """The options of `./inv bench attention`."""

    choice: Choice
    cpus: CpusOption = None
    json: JsonOption = False


def run(options: AttentionOptions) -> None:
    """Write .cache/bench/attention-TIME.json and print the result. Raises Exit if the measurement fails."""
    folder = report.folder()
    engine, image = options.choice.ensure()
    cpus = format_cpu_list(runner.parse_cpus(options.cpus, engine))
    load = os.getloadavg()[0]
    say("measuring: about two minutes")
    try:
        found = runner.run(runner.container(engine, image.id, options.cpus), COMMAND, "attention")
    except runner.RunError as failure:
        raise Exit(f"bench failed: {failure}", code=1) from None
    document = {**report.facts(engine, image), "cpus": cpus, "load": round(load, 1), **found}
    report.publish("attention", document, folder, table, None, options.json)
    wrong = sum(map(slower_is_used, found["rows"]))
    say(
        f"in {wrong} of {len(found['rows'])} cases, ranks use the slower kernel"
        if wrong
        else "ranks use the faster kernel in every case"
    )


def slower_is_used(row: Mapping[str, Any]) -> bool:
    """Whether a rank's kernel takes more than NOISE times as long as the other."""
    used, other = (row["ours"], row["torch"]) if row["uses_ours"] else (row["torch"], row["ours"])
    return bool(used > NOISE * other)


def table(document: report.Document) -> Table:
    """A row for each case."""
    rows = [
        {**row, "ratio": row["torch"] / row["ours"], "slower": slower_is_used(row)} for row in document["rows"]
    ]
    title = f"attention in bf16 by {document['bf16_by']}: ms, {document['cpu']}, threads: {document['threads']}"
    return terminal_table(COLUMNS, rows, title)
