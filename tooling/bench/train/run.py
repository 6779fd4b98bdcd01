"""`./inv bench train`: measures each job under each recipe, in turn."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from invoke.exceptions import Exit

from benchmarks import jobs
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import MOST, check_at_least
from cpu_train_stack.cli.say import say
from cpu_train_stack.machine.cpus import format_cpu_list, parse_cpu_list
from tooling.basis.console import JsonOption
from tooling.bench import plots, report, runner
from tooling.bench.runner import Container, CpusOption, RunError
from tooling.bench.train import recipes, results
from tooling.bench.train.recipes import Recipe
from tooling.bench.train.results import Report, Runs
from tooling.cluster import pretrained
from tooling.engine import docker
from tooling.engine.api import Engine
from tooling.image.choice import Choice
from tooling.image.recipe import PIN_LABEL
from tooling.pins import choose, parse
from tooling.pins.pin import TorchSource

# A load average above this share of the CPUs, before the start, comes from other programs.
BUSY = 0.3
CEILING = f"{runner.FOLDER}/benchmarks/ceiling.py"


@dataclass(frozen=True)
class TrainOptions:
    """The options of `./inv bench train`."""

    choice: Choice
    job: Annotated[
        str | None,
        f"{', '.join(jobs.BY_NAME)}, separated by commas; default: {', '.join(jobs.DEFAULT)}",
    ] = None
    recipe: Annotated[
        str | None,
        f"{', '.join(recipes.BY_NAME)}, separated by commas; default: all",
    ] = None
    data: Annotated[
        str | None,
        "file of real rows for one job: csv (sentence1, sentence2, label) for mrpc-guide and minilm-mrpc, SQuAD's "
        "json for squad-guide",
    ] = None
    ranks: Annotated[str, "numbers of ranks in one container; each number is measured"] = "1,2"
    cpus: CpusOption = None
    seconds: Annotated[float, "approximate time of the measured steps of each run"] = 15.0
    steps: Annotated[int, "measured steps of each run; 0: as many as fit in --seconds"] = 0
    repeats: Annotated[int, "number of rounds; each round measures every combination once"] = 3
    json: JsonOption = False


@dataclass(frozen=True)
class TrainPlan:
    """The jobs, recipes and numbers of ranks to runner. `flags`: arguments of the script, `data`: its rows."""

    jobs: tuple[str, ...]
    recipes: tuple[Recipe, ...]
    ranks: tuple[int, ...]
    repeats: int
    flags: tuple[str, ...]
    data: Path | None


def plan(options: TrainOptions) -> TrainPlan:
    """Raises UsageError."""
    check_at_least("bench: --repeats", options.repeats, 1)
    check_at_least("bench: --steps", options.steps, 0)
    if not 0 < options.seconds <= MOST:
        raise UsageError(f"bench: --seconds is {options.seconds:g}, expected more than 0, at most {MOST}")
    words = options.ranks.split(",")
    if not all(re.fullmatch("[1-9][0-9]{0,2}", word.strip()) for word in words):
        raise UsageError(f"bench: --ranks {options.ranks!r}, expected numbers separated by commas: 1,2")
    names = recipes.chosen(options.recipe, tuple(recipes.BY_NAME), tuple(recipes.BY_NAME), "--recipe")
    chosen = recipes.chosen(options.job, tuple(jobs.BY_NAME), jobs.DEFAULT, "--job")
    data = Path(options.data) if options.data else None
    if data and not (len(chosen) == 1 and jobs.BY_NAME[chosen[0]].reads_text):
        able = ", ".join(job.name for job in jobs.ALL if job.reads_text)
        raise UsageError(f"bench: --data with the jobs {', '.join(chosen)}, expected --job with one of {able}")
    if data:
        _check_readable(data)
    flags = [f"--seconds={options.seconds:g}", *([f"--steps={options.steps}"] if options.steps else [])]
    return TrainPlan(
        jobs=chosen,
        recipes=tuple(recipes.BY_NAME[name] for name in names),
        ranks=tuple(dict.fromkeys(int(word) for word in words)),
        repeats=options.repeats,
        flags=tuple(flags),
        data=data,
    )


def _check_readable(data: Path) -> None:
    try:
        if not data.is_file():
            raise UsageError(f"bench: --data {data}: no such file")
        data.open("rb").close()
    except OSError as error:  # of the file, or of a folder above it
        raise UsageError(
            f"bench: --data {data} cannot be read: {error.strerror}: choose a file that you can read"
        ) from None


def run(options: TrainOptions) -> None:
    """Write train-TIME.json and .png to .cache/bench, and print tables or the document.

    If a recipe fails, its row has the reason, the other recipes are measured, and Exit is raised with code 1.
    """
    chosen = plan(options)
    folder = report.folder()
    engine, image = options.choice.ensure()
    cpus = runner.parse_cpus(options.cpus, engine)
    pin = docker.read_image_at(engine.endpoint, image.id).labels.get(PIN_LABEL)
    images = {recipe.name: _image(recipe, engine, image.id, pin) for recipe in chosen.recipes}
    load = os.getloadavg()[0]
    if load > BUSY * engine.cpus:
        say(
            f"the machine's load average is {load:.1f}: rely on the ratios within a round, not on absolute figures"
        )
    runs: list[Runs] = []
    ceilings: dict[str, list[Report]] = {}
    facts = {
        **report.facts(engine, image),
        "pin": pin,
        "cpus": format_cpu_list(cpus),
        "instructions": os.environ.get(runner.INSTRUCTIONS),
        "data": chosen.data.name if chosen.data else None,
    }
    document: dict[str, Any] = {}
    for name in chosen.jobs:
        ceilings[name] = []
        model, data, rows = _data(chosen.data)
        container = runner.container(engine, image.id, options.cpus, model, data)
        for ranks in chosen.ranks:
            own = [Runs(name, recipe.name, ranks) for recipe in chosen.recipes]
            runs += own
            for number in range(1, chosen.repeats + 1):
                say(f"{name}, ranks: {ranks}, round {number} of {chosen.repeats}")
                profile = ("--profile",) if number == 1 else ()
                flags = ("--job", name, *chosen.flags, *rows, *profile)
                shapes = _round(own, chosen.recipes, flags, images, container)
                ceilings[name] += _ceiling(name, shapes, container) if shapes else []
                loads = [round(load, 1), round(os.getloadavg()[0], 1)]
                document = results.document(runs, ceilings, {**facts, "load": loads})
                report.save("train", document, folder)  # an interrupted measurement keeps the rounds so far
    draw = plots.train if any(row["samples_per_second"] for row in document["rows"]) else None
    report.publish("train", document, folder, results.table, draw, options.json)
    if failed := sorted({one.recipe for one in runs if one.failed}):
        raise Exit(f"bench: {', '.join(failed)} failed: see their rows", code=1)


def _round(
    runs: Sequence[Runs],
    chosen: Sequence[Recipe],
    flags: Sequence[str],
    images: Mapping[str, str | None],
    container: Container,
) -> list[str]:
    """Run each recipe once in its image, except those that failed before.

    Return the shapes of the batches, such as `8x384`, the most frequent first.
    """
    batches: dict[str, int] = {}
    for recipe, one in zip(chosen, runs, strict=True):
        found = None
        if one.reason is None:
            try:
                found = _report(recipe, one, flags, images[recipe.name], container)
            except RunError as failure:
                one.reason, one.failed = str(failure), failure.code != 0
            outcome = f"{found['samples_per_second']:.2f} samples/s" if found else one.reason
            say(f"  {recipe.name}: {outcome}")
        one.reports.append(found)
        for samples, length, count in found["shapes"] if found else ():
            batches[f"{samples}x{length}"] = batches.get(f"{samples}x{length}", 0) + count
    return sorted(batches, key=lambda shape: -batches[shape])


def _report(recipe: Recipe, one: Runs, flags: Sequence[str], image: str | None, container: Container) -> Report:
    """The report of one run. Raises RunError, with code 0 if the recipe cannot run here."""
    if recipe.task and recipe.task != jobs.BY_NAME[one.job].task:
        raise RunError(f"{recipe.name} trains only {recipe.task} models", 0)
    cpus = sorted(parse_cpu_list(container.cpus or ""))
    command = recipe.command(one.ranks, ("--output_dir", "/tmp/out", *flags), cpus)  # noqa: S108 - the container's
    if isinstance(command, str):
        raise RunError(command, 0)
    if image is None:
        words = [*(["--pin", recipe.pin] if recipe.pin else []), *(f"--with {name}" for name in recipe.packages)]
        raise RunError(
            f"the image is missing: run ./inv build {' '.join(words)}, or with --torch-source default where "
            "PyTorch's own index cannot be reached",
            0,
        )
    own = replace(container, image=image, variables={**container.variables, **recipe.variables})
    found = runner.run(own, command, f"train-{one.job}-{recipe.name}-{one.ranks}")
    if found["ranks"] != one.ranks:
        raise RunError(f"ranks that trained: {found['ranks']}, expected {one.ranks}")
    return found


def _ceiling(name: str, shapes: Sequence[str], container: Container) -> list[dict[str, Any]]:
    """The report of the ceiling, or an empty list if its run failed."""
    if jobs.BY_NAME[name].task == jobs.LANGUAGE:
        shapes = shapes[:1]  # nearly every batch of chats has another shape
    try:
        command = ("run", "--quiet", CEILING, name, *shapes)
        return [runner.run(container, command, f"train-{name}-ceiling")]
    except RunError as failure:
        say(f"{name}: the ceiling was not measured: {failure}")
        return []


def _image(recipe: Recipe, engine: Engine, measured: str, pin: str | None) -> str | None:
    """The ID of a recipe's image: the measured one, or one with either source of torch. None if no image exists.

    `pin`: the row of the measured image, if known.
    """
    if not (recipe.pin or recipe.packages):
        return measured
    name = recipe.pin or pin
    if name not in parse.load().pins:
        return None
    for source in TorchSource:
        tag = choose.choose(name, torch_source=source, packages=recipe.packages).image
        if found := docker.find_image_at(engine.endpoint, tag):
            return found.id
    return None


def _data(rows: Path | None) -> tuple[Path | None, Path | None, Sequence[str]]:
    """The folders of the fetched model, whose words split the texts, and of the rows; the script's arguments."""
    if rows is None:
        return None, None, ()
    rows = rows.resolve()
    return pretrained.minilm(), rows.parent, ("--data", f"{runner.FOLDER}/data/{rows.name}")
