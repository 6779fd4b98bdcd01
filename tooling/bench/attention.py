"""`./inv bench attention`: this project's kernels next to torch's, and whether ranks use the faster one."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from invoke.exceptions import Exit
from rich.table import Table

from cpu_train_stack.machine.cpus import format_cpu_list
from tooling.basis.console import JsonOption
from tooling.basis.say import say
from tooling.bench import measure, output
from tooling.bench.measure import CpusOption
from tooling.image.choice import Choice

COMMAND = ("run", "--quiet", f"{measure.FOLDER}/benchmarks/attention.py")
# A kernel is the faster one if the other takes more than this many times as long. Less is noise.
NOISE = 1.1


@dataclass(frozen=True)
class AttentionOptions:
    """The options of `./inv bench attention`."""

    choice: Choice
    cpus: CpusOption = None
    json: JsonOption = False


def run(options: AttentionOptions) -> None:
    """Write .cache/bench/attention-TIME.json and print the result. Raises Exit if the measurement fails."""
    folder = output.folder()
    engine, image = options.choice.ensure()
    cpus = format_cpu_list(measure.parse_cpus(options.cpus, engine))
    load = os.getloadavg()[0]
    say("measuring: about two minutes")
    try:
        report = measure.run(measure.container(engine, image.id, options.cpus), COMMAND, "attention")
    except measure.RunError as failure:
        raise Exit(f"bench failed: {failure}", code=1) from None
    document = {**output.facts(engine, image), "cpus": cpus, "load": round(load, 1), **report}
    output.publish("attention", document, folder, table, None, options.json)
    wrong = sum(map(slower_is_used, report["rows"]))
    say(
        f"in {wrong} of {len(report['rows'])} cases, ranks use the slower kernel"
        if wrong
        else "ranks use the faster kernel in every case"
    )


def slower_is_used(row: Mapping[str, Any]) -> bool:
    """Whether a rank's kernel takes more than NOISE times as long as the other."""
    used, other = (row["ours"], row["torch"]) if row["uses_ours"] else (row["torch"], row["ours"])
    return bool(used > NOISE * other)


def table(document: output.Document) -> Table:
    """A row for each case. The times are milliseconds."""
    shown = Table(
        "rows x heads x tokens x features", "dropout", "passes", "torch", "ours", "torch / ours", "used",
        title=f"attention in bf16 by {document['bf16_by']}: ms, {document['cpu']}, threads: {document['threads']}",
    )  # fmt: skip
    for row in document["rows"]:
        used = "ours" if row["uses_ours"] else "torch"
        shown.add_row(
            f"{row['rows']} x {row['heads']} x {row['tokens']} x {row['features']}"
            + (", causal" if row["causal"] else ""),
            f"{row['dropout']:g}",
            "forward and backward" if row["trains"] else "forward",
            f"{row['torch'] * 1000:.1f}",
            f"{row['ours'] * 1000:.1f}",
            f"{row['torch'] / row['ours']:.2f}",
            f"{used}, the slower one" if slower_is_used(row) else used,
        )
    return shown
