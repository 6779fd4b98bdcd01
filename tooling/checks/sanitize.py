"""`./inv dev sanitize`: runs every collective and DDP's hooks on a ccl backend compiled with a sanitizer."""

from invoke.exceptions import Exit

from tooling.engine import api, docker
from tooling.image import build, recipe
from tooling.pins import parse

# The stage of images/Dockerfile that compiles the backend, and the folder to which it unpacks oneCCL.
STAGE = "backend"
ONECCL = "/tmp/oneccl"  # noqa: S108  in the container, created by images/scripts/build-bindings
LIMIT_SECONDS = 1800.0


def run(pin_name: str | None, thread: bool) -> None:
    """Run bindings/tests/sanitize.py with AddressSanitizer, or with ThreadSanitizer if `thread`.

    The script runs in the build stage that has the compiler. Raises Exit with the script's exit code if it fails.
    """
    name = "ThreadSanitizer" if thread else "AddressSanitizer"
    pin = parse.load().pin(pin_name)
    api.ensure()
    tag = f"{pin.image}-{STAGE}"
    build.rebuild(pin, tag, f"--target={STAGE}")
    try:
        done = docker.run(
            tag,
            [
                *("/opt/venv/bin/python", "/bindings/tests/sanitize.py", "/bindings/build.py", ONECCL),
                f"--sanitizer={'thread' if thread else 'address'}",
            ],
            [
                # ThreadSanitizer needs fixed addresses, which Docker's default profile refuses.
                *(["--security-opt=seccomp=unconfined"] if thread else []),
                f"--volume={recipe.BINDINGS}:/bindings:ro",
                f"--volume={recipe.PACKAGE}:{recipe.site_packages(pin)}/cpu_train_stack:ro",
            ],
            limit_seconds=LIMIT_SECONDS,
        )
    finally:  # the layers stay in the build cache
        docker.remove_image(tag)
    if done.returncode != 0:
        raise Exit(f"{name} reported an error, or a rank failed: see the output above", code=done.returncode)
    print(f"{name} reported no errors")
