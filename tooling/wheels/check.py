"""`./inv dev check-matrix`: checks each row of the matrix against its rules and against pip's resolver."""

from collections.abc import Iterable

from invoke.exceptions import Exit

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.pins import rules, status
from tooling.pins.pin import Pin, TorchSource
from tooling.pins.status import PinStatus
from tooling.wheels import resolve
from tooling.wheels.resolve import UnavailableError

CHECK = "./inv dev check-matrix"


def check(chosen: Iterable[Pin]) -> None:
    """Apply the rules and pip's resolver to each row, and record proofs. Raises Exit with 1 if a row is wrong.

    A row whose wheels this machine cannot reach is not wrong. Its status does not change.
    """
    wrong = 0
    for pin in chosen:
        problem = rules.broken(pin)
        verdict = f"wrong: {problem}" if problem else _resolve(pin)
        wrong += verdict.startswith("wrong")
        say(f"{pin.name}: {verdict}; status {status.of(pin).status}")
    if wrong:
        raise Exit(f"{wrong} row(s) of the matrix are wrong: see the lines above", code=1)


def _resolve(pin: Pin) -> str:
    """Resolve the row with its torch, then with the default index's torch and without Intel's bindings."""
    unavailable = ""
    for variant in [pin, pin.with_default_torch()]:
        try:
            packages, build_packages = resolve.resolve(variant)
        except UnavailableError as error:
            unavailable = unavailable or str(error)
            continue
        except UsageError as error:
            return f"wrong: {error}"
        status.record(variant, PinStatus.RESOLVED, f"{CHECK} --pin {pin.name}")
        wheels = len(packages) + len(build_packages)
        default = variant.torch_source is TorchSource.DEFAULT
        return f"{wheels} wheels" + (", with the default index's torch" if default else "")
    return f"not checked: {unavailable}"
