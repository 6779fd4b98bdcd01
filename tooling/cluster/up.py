"""The commands for local clusters: `./inv up`, `down`, `logs`, `status` and `watch`.

They parse options, choose a cluster and restart it after failures. tooling.cluster.run runs a cluster once.
"""

import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from invoke.exceptions import Exit

from cpu_train_stack import contract
from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import UsageError, check_all
from cpu_train_stack.cli.numbers import check_at_least
from cpu_train_stack.cli.printable import one_line
from cpu_train_stack.cli.say import say
from cpu_train_stack.machine import topology
from cpu_train_stack.watch import main as watch_main
from cpu_train_stack.watch.tail import folders
from tooling.basis import yaml
from tooling.cluster import compose, containers, launchers, nodes, run
from tooling.cluster.compose import ClusterSpec, EnvOption
from tooling.cluster.follow import copy, copy_log
from tooling.cluster.run import Outcome
from tooling.cluster.spec import Mount
from tooling.engine import api
from tooling.image.choice import Choice


@dataclass(frozen=True)
class Options:
    """How `./inv up` runs a cluster. Raises UsageError, one line with all invalid options."""

    data: Annotated[str | None, "a folder on this machine, mounted read-only at /data in every container"] = None
    output: Annotated[
        str | None, "a folder on this machine, mounted writable at /output; default: .cache/clusters/NAME/output"
    ] = None
    env: EnvOption = ()
    detach: Annotated[bool, "leave the cluster running: see ./inv logs and ./inv down"] = False
    max_restarts: Annotated[int, "restarts after a failure, each from the last checkpoint; default: none"] = 0
    print_compose: Annotated[bool, "print a file for docker compose up, and start nothing"] = False

    def __post_init__(self) -> None:
        check_all(
            [
                self._check_data,
                partial(variables, self.env),
                partial(check_at_least, "--max-restarts", self.max_restarts, 0),
                self._check_detach,
            ]
        )

    def _check_data(self) -> None:
        try:
            is_folder = self.data is None or Path(self.data).is_dir()
        except PermissionError as error:
            raise UsageError(f"--data {self.data}: {error.strerror}: choose a folder that you can read") from None
        if not is_folder:
            raise UsageError(f"--data {self.data} is not a folder: choose a folder to mount at {contract.DATA}")

    def _check_detach(self) -> None:
        if self.max_restarts > 0 and self.detach:
            raise UsageError("--max-restarts needs a cluster that ./inv up watches: leave out --detach")


@dataclass(frozen=True)
class Request:
    """What `./inv up` runs: a cluster, its image, and how."""

    cluster: ClusterSpec
    choice: Choice
    options: Options

    def __post_init__(self) -> None:
        restarts = self.options.max_restarts
        if self.options.print_compose and (self.cluster.launcher == "mpirun" or restarts):
            found = "--max-restarts" if restarts else "--launcher mpirun, whose ssh keys ./inv up creates"
            raise UsageError(f"--print-compose and {found}: expected --launcher torchrun, and no restarts")


def up(request: Request) -> None:
    """Run the command on a cluster. Raises Exit with the job's exit code; with `detach`, return at once."""
    name, options = request.cluster.name, request.options
    environment = variables(options.env)
    check_set([key for key, value in environment.items() if value is None], os.environ)
    spec = replace(request.cluster, image=request.choice.reference)
    if options.print_compose:
        request.choice.verify()
    folder = Path(options.output) if options.output else run.folder_of(name) / "output"
    writable = run.users_folder(folder) if options.output else run.writable_folder(folder)
    mounts = [Mount(Path(options.data).resolve(), contract.DATA)] if options.data else []
    spec = replace(spec, mounts=(*mounts, Mount(writable, contract.OUTPUT, read_only=False)))
    if options.print_compose:
        spec = replace(spec, environment={contract.IMAGE: spec.image, **environment})
        parts = compose.containers(spec, topology.read().cores, folder)
        print(yaml.render([compose.document(name, parts, spec.offline, managed=False)]), end="")
        return
    engine, image = request.choice.ensure()
    # By its ID: a build during the job moves the tag, and a restart would run another image.
    spec = replace(spec, image=image.id, environment={contract.IMAGE: image.id, **environment})
    if options.detach:
        run.start(spec, engine)
        say(f"cluster {name} is up: ./inv logs --name {name} shows its output, ./inv down --name {name} ends it")
        return
    began = time.time()
    outcome = run_with_restarts(lambda attempt: run.run(attempt, engine), spec, options.max_restarts)
    say(f"output folder: {one_line(str(folder))}")
    for report in reports(folder, began):
        say(f"report: {one_line(str(report))}")
    if outcome.exit_code != 0:
        raise Exit(code=outcome.exit_code)


def reports(folder: Path, began: float) -> list[Path]:
    """The reports of this job in its output folder. `began`: in seconds since the epoch."""
    found = [inner / contract.REPORT for inner in folders(folder)]
    return sorted(path for path in found if files.written(path) >= began)


def run_with_restarts(run_once: Callable[[ClusterSpec], Outcome], spec: ClusterSpec, max_restarts: int) -> Outcome:
    """Run a cluster, and restart it after a failure: the job then resumes from its last checkpoint.

    There is no restart after exit codes 2 (the same command fails again) and 75 (the job was asked to save a
    checkpoint and end), and after ./inv down.
    """
    spec = replace(spec, environment={contract.JOB: f"up/{uuid.uuid4().hex}", **spec.environment})
    outcome = run_once(spec)
    for restart in range(1, max_restarts + 1):
        if outcome.exit_code in (0, *contract.FINAL_EXIT_CODES) or outcome.taken_down:
            break
        say(f"restart {restart} of {max_restarts}")
        outcome = run_once(replace(spec, restarted=True))
    return outcome


def down(name: str | None) -> None:
    """Remove a cluster. Without a name: the only running cluster. Also one of which only the network is left."""
    projects = {one for engine in api.running() for one in containers.projects_of_networks(engine.endpoint)}
    left = [one.removeprefix(compose.PROJECT_PREFIX) for one in projects if one.startswith(compose.PROJECT_PREFIX)]
    found = sorted({*running(), *left})
    if not found and name is None:
        say("no cluster is running: nothing to remove")
        return
    chosen = _choose(name, found)
    run.take_down(chosen)
    say(f"cluster {chosen} is down")


def status(name: str | None) -> list[tuple[str, str, str]]:
    """Cluster, name and state of each node of a cluster, or of every cluster."""
    seen = nodes.of_checkout(compose.check_name(name) if name else None)
    if not seen:
        raise UsageError(f"no cluster or job is named {name!r}" if name else "no cluster or job is running")
    return [
        (node.cluster, node.name, node.stall() or ("running" if node.running else node.describe_end()))
        for node in seen
    ]


def logs(name: str | None, follow: bool) -> None:
    """Print a cluster's output: from its containers while it runs, from its log file afterwards.

    Without a name: of the only running cluster.
    """
    try:
        up_now = running()
    except UsageError as error:  # no engine answers
        if not ended():
            raise
        say(f"without running clusters: {error}")
        up_now = []
    past = ended()  # also what has just ended
    if name and name not in {*up_now, *past} and run.started_at(name):
        raise UsageError(
            f"cluster {name} has no log, expected one after its end: it did not start, or was not removed by "
            "./inv: start it again with ./inv up"
        )
    chosen = _choose(name, sorted({*up_now, *past}) if name else up_now)
    if chosen in up_now:
        for engine in api.running():
            copy(engine.endpoint, compose.PROJECT_PREFIX + chosen, sys.stdout.buffer, follow=follow)
        return
    with (run.folder_of(chosen) / "log.txt").open("rb") as log:
        copy_log(log, sys.stdout.buffer)


def watch(name: str | None) -> None:
    """Follow a cluster's job by its records, also after its end. Raises Exit after Ctrl-C."""
    up_now = running()
    chosen = _choose(name, sorted({*up_now, *ended()}) if name else up_now)
    folder = run.output_of(chosen)
    if folder is None:
        raise UsageError(f"cluster {chosen} has no output folder to watch: start it with ./inv up")
    # The output folder may have the records of an earlier job.
    since = run.started_at(chosen) if chosen in up_now else 0.0

    def runs() -> bool:
        return any(node.running for node in nodes.of_checkout(chosen))

    if code := watch_main.watch(folder, runs=runs, since=since):
        raise Exit(code=code)


def variables(words: Sequence[str]) -> dict[str, str | None]:
    """Parse --env. `NAME=VALUE` sets a variable in every rank; `NAME` passes the caller's own value."""
    check_all(
        [
            *(partial(launchers.check_variable, "--env", word.partition("=")[0]) for word in words),
            partial(launchers.check_distinct, "--env", words),
        ]
    )
    parts = (word.partition("=") for word in words)
    return {key: value if equals else None for key, equals, value in parts}


def check_set(names: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raises UsageError if one of the variables to pass on is not set."""
    if missing := [name for name in names if name not in environ]:
        raise UsageError(f"--env {', '.join(missing)}: not set in your environment: set it, or use NAME=VALUE")


def running() -> list[str]:
    """The clusters that have containers."""
    return sorted({node.cluster for node in nodes.of_checkout()})


def ended() -> dict[str, float]:
    """The clusters that have a log file, with its time: they have ended, or ./inv up is writing their log."""
    times = {log.parent.name: files.written(log) for log in run.CLUSTERS.glob("*/log.txt")}
    # A new cluster removes the log of the one before.
    return {name: written for name, written in times.items() if written}


def _choose(name: str | None, names: Sequence[str]) -> str:
    """`name`, or without a name the only one of `names`. Raises UsageError."""
    if name in names:
        return str(name)
    found = ", ".join(names) or "none"
    if name is not None:
        raise UsageError(f"no cluster is named {name!r}, found {found}: ./inv status lists the running clusters")
    if len(names) != 1:
        fix = "choose one with --name" if names else "./inv up starts one"
        raise UsageError(f"expected one running cluster, found {found}: {fix}")
    return names[0]
