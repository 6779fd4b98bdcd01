"""Test and maintain this project."""

from typing import Annotated

from cpu_train_stack.cli.say import say
from tooling.basis.console import JsonOption
from tooling.checks import canaries as canaries_of
from tooling.checks import conformance as torch_conformance
from tooling.checks import differential as compared
from tooling.checks import fresh as fresh_machine
from tooling.checks import on_kubernetes
from tooling.checks import ranks as of_ranks
from tooling.checks import sanitize as sanitized
from tooling.checks import soak as soaked
from tooling.checks import tables as of_results
from tooling.checks.emulate import guest
from tooling.checks.faults import reliability
from tooling.cli.options import task
from tooling.image import reproduce as reproduced
from tooling.image.choice import TORCH_SOURCES, PinOption, SetOption, TorchSourceOption, WithOption
from tooling.pins import choose, parse
from tooling.pins.pin import TorchSource
from tooling.wheels import added, check, locks


@task
def check_matrix(pin: Annotated[str | None, "check only this row"] = None) -> None:
    """Check every row: versions that fit together, and wheels that pip finds for the row."""
    loaded = parse.load()
    check.check([loaded.pin(pin)] if pin else list(loaded.pins.values()))


@task
def lock(
    pin: PinOption = None,
    with_: WithOption = (),
    torch_source: Annotated[
        str, f"{TORCH_SOURCES}; default: row; with --with, as ./inv build: default without a lock"
    ] = "",
) -> None:
    """Re-create a pin's lock, images/locks/PIN.txt, or the lock of the packages that --with adds."""
    if with_:  # on top of the row's lock, as ./inv build --with
        path = added.lock(locks.choose_pin(pin, (), torch_source, with_))
    else:
        path = locks.write(choose.choose(pin, (), torch_source or TorchSource.ROW))
    say(f"wrote {path}")


@task
def reproduce(
    pin: PinOption = None,
    with_: WithOption = (),
    torch_source: TorchSourceOption = "",
    json: JsonOption = False,
) -> None:
    """Build a pin twice without the build cache; compare the layers, down to the first file that differs."""
    reproduced.run(locks.choose_pin(pin, (), torch_source, with_), json)


@task
def conformance(
    pin: PinOption = None,
    ranks: Annotated[int, "ranks in the container"] = 3,
    only: Annotated[str, "run only tests whose names match this regular expression"] = "",
    json: JsonOption = False,
) -> None:
    """Run torch's own suite for process groups with ccl and with gloo, and compare."""
    torch_conformance.run(pin, ranks, only, json)


@task
def canaries(
    pin: PinOption = None,
    set_: SetOption = (),
    newest: Annotated[bool, "with the newest transformers, accelerate, peft, datasets and evaluate"] = False,
    json: JsonOption = False,
) -> None:
    """Show for each adaptation whether the releases in an image still need it, and whether its hooks exist."""
    canaries_of.run(pin, set_, newest, json)


@task
def ranks(
    pin: PinOption = None,
    only: Annotated[tuple[str, ...], "train only in this way, such as LoRA; may be repeated"] = (),
    json: JsonOption = False,
) -> None:
    """Train in many ways with one rank and with two, with and without accumulation, and compare all numbers."""
    of_ranks.run(pin, only, json)


@task
def differential(
    pin: PinOption = None,
    part: Annotated[str, f"only {' or '.join(compared.PARTS)}"] = "",
    cases: Annotated[int, "cases of each part"] = 2000,
    seed: Annotated[int, "other cases"] = 1,
    seconds: Annotated[float, "limit of each part"] = 1800.0,
) -> None:
    """Compare random collectives with gloo, and random operators with torch, until a difference."""
    compared.run(pin, part, cases, seed, seconds)


@task
def sanitize(
    pin: PinOption = None, thread: Annotated[bool, "use ThreadSanitizer instead of AddressSanitizer"] = False
) -> None:
    """Run every collective on a ccl backend compiled with AddressSanitizer or ThreadSanitizer."""
    sanitized.run(pin, thread)


@task
def soak(
    shape: soaked.SoakShape,
    pin: PinOption = None,
    jobs: Annotated[int, "number of jobs, which run one after another, each on a new cluster"] = 100,
) -> None:
    """Run many short jobs, check every result and leftover, keep the logs of failed jobs."""
    soaked.run(pin, jobs, shape)


@task
def faults(
    only: Annotated[str, "inject only faults whose names match this regular expression, such as disk-full"] = "",
    launcher: Annotated[str, "torchrun or mpirun; default: both"] = "",
) -> None:
    """Inject every fault into running jobs, check how the jobs end, and resume from their checkpoints."""
    reliability.run(only, launcher)


@task
def emulate(
    command: tuple[str, ...],
    bochs: Annotated[str | None, "required: a git checkout of Bochs, which runs the emulated machine"] = None,
    pin: PinOption = None,
    data: Annotated[str | None, "a folder on this machine, mounted read-only at /data"] = None,
) -> None:
    """Run a command of the image on an emulated Sapphire Rapids: ./inv dev emulate --bochs FOLDER -- plan."""
    guest.run(bochs, pin, data, command)


@task
def fresh(command: tuple[str, ...] = ()) -> None:
    """Run the README's two commands, or COMMAND, on a fresh Debian without any of this machine's programs."""
    fresh_machine.run(command)


@task
def kubernetes(
    image: Annotated[str, "required: the image HOST/NAME@sha256:…, which the cluster can pull"] = "",
    namespace: Annotated[str, "required: the namespace in which the jobs run"] = "",
    pvc: Annotated[str, "required: a PersistentVolumeClaim in it, to which all pods can write"] = "",
    only: Annotated[str, "run only tests that match this expression of pytest's -k, such as trainjob"] = "",
) -> None:
    """Run a job of each kind, and the main faults, with the operators of the cluster that KUBECONFIG names."""
    on_kubernetes.run(image, namespace, pvc, only)


@task
def tables() -> None:
    """Write the tables of figures in README.md and docs/ from the results in benchmarks/results."""
    of_results.run()
