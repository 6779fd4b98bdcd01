"""`./inv dev emulate`: a disk of an image for the emulated machine, and a command that runs there."""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import locked
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE
from tooling.checks.emulate import bochs
from tooling.engine import api, docker
from tooling.engine.docker import LocalImage
from tooling.image import base, build
from tooling.pins import parse

FOLDER = CACHE / "emulated"


def run(bochs_folder: str | None, pin_name: str | None, data: str | None, command: tuple[str, ...]) -> None:
    """Print the command's output. Raises Exit with the command's exit code if that is not 0."""
    checkout = bochs.checkout(bochs_folder)
    folder = Path(data).expanduser().resolve() if data is not None else None
    if folder and not folder.is_dir():
        raise UsageError(f"--data {data} is not a folder")
    pin = parse.load().pin(pin_name)
    api.ensure()
    image = docker.read_image(build.build(pin).id)
    emulator = bochs.ensure(checkout, base.ensure(pin))
    disk = _disk(image, pin.image, emulator)
    say("booting: about half a minute; importing torch takes one or two minutes")
    code = _run(image.configuration, disk, emulator, folder, command)
    if code != 0:
        raise Exit(code=code)


def _disk(found: LocalImage, image: str, emulator: str) -> Path:
    """The image's files as a disk, made once for each image. The disks of other images are removed."""
    made_by = hashlib.sha256((bochs.MACHINE / "make-disk").read_bytes()).hexdigest()
    path = FOLDER / f"{found.id.removeprefix('sha256:')[:12]}-{made_by[:6]}.disk"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with locked(FOLDER / "disk.lock", lambda: say("waiting for another ./inv that is creating a disk")):
        if path.is_file():
            return path
        for other in FOLDER.glob("*.disk*"):
            other.unlink()
        say(f"creating a disk from {image}")
        arguments = (f"--volume={FOLDER}:/made", f"--env=OWNER={os.getuid()}:{os.getgid()}", "--interactive")
        export = ["docker", "container", "export"]
        with (
            docker.created(found) as container,
            subprocess.Popen([*export, container], stdout=subprocess.PIPE) as exported,
        ):
            done = docker.run(emulator, ["make-disk", f"/made/{path.name}"], arguments, stdin=exported.stdout)
        if done.returncode != 0 or exported.returncode != 0:
            raise UsageError(
                f"creating a disk from {image} failed: see the lines above; the disk takes 3 GB in {FOLDER}"
            )
    return path


def _run(
    configuration: Mapping[str, Any], disk_file: Path, emulator: str, data: Path | None, command: Sequence[str]
) -> int:
    """Run a command, with `data` as /data, and return its exit code. `configuration`: as in LocalImage."""
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="job-") as scratch:
        job = Path(scratch)
        (job / "command").write_text(script(configuration, command), encoding="utf-8")
        if data is None:
            (job / "data").mkdir()
        else:
            shutil.copytree(data, job / "data", symlinks=True)
        arguments = (f"--volume={job}:/job:ro", f"--volume={disk_file}:/disk", "--network=none")
        return docker.run(emulator, ["boot"], arguments).returncode


def script(configuration: Mapping[str, Any], command: Sequence[str]) -> str:
    """The shell script that runs a command with the image's user, variables, folder and entrypoint."""
    variables = {**dict(pair.split("=", 1) for pair in configuration.get("Env") or ()), "HOSTNAME": "guest"}
    assigned = [f"{name}={value}" for name, value in variables.items()]
    entrypoint = configuration.get("Entrypoint") or ()
    user, _, group = (configuration.get("User") or "0").partition(":")
    argv = ["setpriv", f"--reuid={user}", f"--regid={group or user}", "--clear-groups", "env", "-i", *assigned]
    folder = shlex.quote(configuration.get("WorkingDir") or "/")
    return f"cd {folder}\nexec {shlex.join([*argv, *entrypoint, *command])}\n"
