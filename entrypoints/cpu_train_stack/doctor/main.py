"""`doctor [--json]`: check this container for a training job; about 13 seconds on two cores.

    doctor --quick                                   # only checks that need no ranks; a second
    doctor --local-world-size 2                      # check for two ranks here
    doctor --serve                                   # on rank 0's node, and meanwhile on the other nodes:
    doctor --master-addr node-0                      # check the route to it, its clock and its pin

Exit code 1 if a line is an error. The measurements start real ranks, through the same commands as a job.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cpu_train_stack import contract
from cpu_train_stack.cli import checks
from cpu_train_stack.cli.checks import Check, CheckStatus
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import count
from cpu_train_stack.cli.options import default_backend, option, parse_options, port_number, ranks_of_a_node
from cpu_train_stack.cli.say import say, show
from cpu_train_stack.doctor import container, image, network, ranks
from cpu_train_stack.machine import cpus, topology
from cpu_train_stack.page import checks as page
from cpu_train_stack.page import render
from cpu_train_stack.page.blocks import Drawing
from cpu_train_stack.placement import detect
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.plan import command, planner, preload
from cpu_train_stack.plan import page as plan_page

DESCRIPTION = """\
Check this container for a training job. Each line is ok, warning or error, with how to fix it.
Exit code 1 if a line is an error."""


@dataclass(frozen=True)
class DoctorOptions:
    """The command line of `doctor`."""

    as_json: bool = option("--json", "print one JSON document instead of a table", False)
    html: str = option("--html", render.HTML_HELP, "", metavar="FILE")
    quick: bool = option("--quick", "start no ranks: skip preloads, bf16 and collectives", False)
    local_world_size: int | None = option(
        "--local-world-size", "number of ranks in this container (default: the launcher's, or launch's default)",
        type=ranks_of_a_node, metavar="R",
    )  # fmt: skip
    master_addr: str | None = option(
        "--master-addr", "rank 0's node, if not this node (default: MASTER_ADDR)", metavar="HOST"
    )
    master_port: int | None = option(
        "--master-port", f"port where the ranks meet (default: MASTER_PORT or {contract.MASTER_PORT})",
        type=port_number, metavar="PORT",
    )  # fmt: skip
    serve: bool = option(
        "--serve", "report time and pin to other nodes' doctors on the master port, until stopped", False
    )


def main(argv: list[str]) -> int:
    options = parse_options(DoctorOptions, argv, "doctor", DESCRIPTION)
    if options.serve:
        port = options.master_port or detect.master_port(os.environ)
        _serve(DistributedEnvironment(master_port=port).master_port)  # checks the range
        return 0
    done = []
    width = shutil.get_terminal_size((115, 0)).columns
    for check in examine(options, os.environ):
        done.append(check)
        if not options.as_json:
            show(checks.lines(check, width))  # at once: the measurements take a while
    if options.as_json:
        print(checks.document(done))
    if options.html:
        render.save(page.page(f"This container: {platform.node()}", done, _picture(options)), Path(options.html))
    return 1 if checks.worst(done) is CheckStatus.ERROR else 0


def _picture(options: DoctorOptions) -> list[Drawing]:
    """The cores, with the ranks that the checks are for. Empty if a check reports why there is no picture."""
    try:
        host = topology.read()
        plans = command.node(host, _wanted(options, _launcher(os.environ)[0]), os.environ)
        return plan_page.drawings(f"This container, with {count(len(plans), 'rank')}", host, plans)
    except (OSError, ValueError, LookupError, UsageError):
        return []


def _wanted(options: DoctorOptions, place: DistributedEnvironment) -> int:
    """The number of ranks in this container."""
    return options.local_world_size or (place.local_world_size if place.launcher != detect.SINGLE else auto())


def _serve(port: int) -> None:
    say(f"answering the doctors of other nodes on port {port}: press ctrl-C to stop")
    try:
        network.serve(port)
    except KeyboardInterrupt:
        return


def examine(options: DoctorOptions, environ: Mapping[str, str]) -> Iterator[Check]:
    """Every check, the quick ones first."""
    place, launcher = _launcher(environ)
    yield launcher
    wanted = _wanted(options, place)
    yield from checks.attempt("topology", lambda: container.examine_machine(topology.read(), wanted))
    yield from checks.attempt("plan", lambda: _plan(place, wanted, environ))
    yield from checks.attempt(container.SHM, lambda: container.examine_shm(wanted))
    yield from checks.attempt("open files", container.examine_limits)
    yield from checks.attempt("versions", image.examine_versions)
    yield from checks.attempt("advisories", image.examine_advisories)
    master = network.wanted_master(options.master_addr, options.master_port, place, environ)
    yield from checks.attempt("network", lambda: network.examine_network(master, environ))
    if options.quick:
        return
    yield from checks.attempt("a rank", lambda: ranks.examine_rank(cpus.read_model().bf16))
    yield from checks.attempt("allreduce", ranks.examine_allreduce)


def auto() -> int:
    """`launch`'s default number of ranks; 1 if the machine cannot be read, which another check reports."""
    try:
        return planner.ranks_for(topology.read())
    except (OSError, ValueError, LookupError):
        return 1


def _plan(place: DistributedEnvironment, wanted: int, environ: Mapping[str, str]) -> list[Check]:
    """The plan for rank 0 of `wanted` ranks here."""
    host, libraries = topology.read(), preload.find(environ)
    if wanted != place.local_world_size:
        place = command.what_if(place, wanted, None, None)
    found = planner.plan(place, host, environ, libraries, default_backend())
    return container.plan(found, (*host.warnings, *libraries.warnings))


def _launcher(environ: Mapping[str, str]) -> tuple[DistributedEnvironment, Check]:
    """This process's placement; a single rank if its variables are inconsistent."""
    try:
        # In a Kubeflow pod, the doctor runs beside the job (kubectl exec): PET_NNODES is for the job.
        place = detect.detect({**environ, "PET_NNODES": ""})
    except UsageError as error:
        return DistributedEnvironment(), checks.refusal("launcher", error)
    if place.launcher == detect.SINGLE:
        return place, Check("launcher", CheckStatus.OK, "none: a single rank")
    detail = f"{place.launcher}: rank {place.rank} of {place.world_size}, {place.local_world_size} on this node"
    return place, Check("launcher", CheckStatus.OK, detail)
