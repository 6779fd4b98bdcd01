"""What the decoder of `./inv demo --task sft` answers to the held-out messages, before and after its training."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit
from rich.markup import escape
from rich.table import Table

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import parse_json
from cpu_train_stack.cli.say import say
from tooling.basis.console import PrintableConsole
from tooling.cluster import run
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.demo_chats import Chat
from tooling.cluster.spec import Mount
from tooling.engine.api import Engine

LONGEST_ANSWER = 48  # tokens; the expected answers have about 32
SHOWN = 4
METRIC = "right_answers"
WHEN = ("before", "after")


def ask(image: str, model: Path, questions: Sequence[str], engine: Engine) -> list[str]:
    """The model's answer to each question, from `generate` in one container. Raises Exit if it fails."""
    say(f"asking the model {len(questions)} questions")
    spec = ClusterSpec(
        name="demo-answers",
        image=image,
        nodes=1,
        command=("generate", "--json", f"--max_new_tokens={LONGEST_ANSWER}", "/model", *questions),
        mounts=(Mount(model, "/model"),),
        offline=True,
    )
    output = io.BytesIO()
    outcome = run.run(spec, engine, output)
    lines = output.getvalue().decode(errors="replace").splitlines()
    if outcome.exit_code != 0:
        raise Exit("\n".join([*lines, "the demo failed: generate could not answer"]), code=outcome.exit_code)
    answers = [line.partition(" | ")[2] for line in lines]
    try:
        found = [str(parse_json(line)["completion"]) for line in answers if line.startswith("{")]
    except (ValueError, LookupError, TypeError):
        found = []
    if len(found) != len(questions):
        raise UsageError(f"generate printed {len(found)} answers, expected {len(questions)}: use another image")
    return found


def compare(chats: Sequence[Chat], before: Sequence[str], after: Sequence[str]) -> dict[str, Any]:
    """For result.json: every answer, and the share of right answers as the metric."""
    answers = [
        {
            "question": question,
            "expected": expected,
            "before": old,
            "after": new,
            "right_before": is_right(old, expected),
            "right_after": is_right(new, expected),
        }
        for (question, expected), old, new in zip(chats, before, after, strict=True)
    ]
    shares = {f"metric_{when}": sum(bool(a[f"right_{when}"]) for a in answers) / len(answers) for when in WHEN}
    return {"answers": answers, "metric_name": METRIC, **shares}


def is_right(answer: str, expected: str) -> bool:
    """Whether the answer is JSON with the expected content, and nothing else."""
    try:
        return bool(json.loads(answer) == json.loads(expected))
    except ValueError:
        return False


def show(answers: Sequence[dict[str, Any]]) -> None:
    """Print the first answers as a table on standard output."""
    title = f"{SHOWN} of {len(answers)} messages that the training did not contain"
    table = Table(title=title, title_justify="left", show_header=False, show_lines=False)
    for answer in answers[:SHOWN]:
        table.add_row("[bold]message[/]", f"[bold]{escape(answer['question'])}[/]")
        for when in WHEN:
            mark = "right" if answer[f"right_{when}"] else "wrong"
            color = "green" if mark == "right" else "red"
            text = " ".join(answer[when].split())
            table.add_row(f"{when}, [{color}]{mark}[/]", escape(text), end_section=when == WHEN[-1])
    PrintableConsole().print(table)
