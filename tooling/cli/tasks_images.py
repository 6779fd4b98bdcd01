"""The tasks about pins and images."""

from typing import Annotated

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.basis.console import HtmlOption, JsonOption
from tooling.cli.options import task
from tooling.hpc import export as hpc_export
from tooling.hpc.export import FORMATS
from tooling.image import build as image_build
from tooling.image import push as image_push
from tooling.image import sign as image_sign
from tooling.image.choice import Choice, PinOption, SetOption, TorchSourceOption, WithOption
from tooling.pins import parse, table
from tooling.wheels import advisories as wheels_advisories
from tooling.wheels import locks


@task
def matrix(json: JsonOption = False, html: HtmlOption = None) -> None:
    """Show the pins: each row is a set of versions that fit together."""
    table.show(parse.load(), as_json=json, html=html)


@task
def advisories(
    pin: PinOption = None,
    torch_source: TorchSourceOption = "",
    osv: Annotated[
        str | None,
        "a folder with osv.dev's dump of PyPI, unpacked; default: only the table of images/versions.toml",
    ] = None,
    json: JsonOption = False,
) -> None:
    """List a row's known vulnerabilities; exit with 1 if --osv has any that the project's table lacks."""
    wheels_advisories.run(locks.choose_pin(pin, (), torch_source), osv, json)


@task
def build(
    pin: PinOption = None,
    all: Annotated[bool, "build every row; rows that fail are reported, and the exit code is then 1"] = False,
    set: SetOption = (),
    with_: WithOption = (),
    torch_source: TorchSourceOption = "",
    prune: Annotated[bool, "delete the wheels of each row after its build: with --all, for a small disk"] = False,
) -> None:
    """Build the image cpu-train-stack:PIN."""
    if all and (pin or set or with_):
        raise UsageError("build takes --all, or --pin with --set and --with: give one of the two")
    if all:
        image_build.run_all(torch_source, prune)
    else:
        image_build.run(locks.choose_pin(pin, set, torch_source, with_), prune)


@task
def push(
    registry: Annotated[str, "required: HOST[:PORT]/NAME; docker login provides the credentials"] = "",
    pin: PinOption = None,
    with_: WithOption = (),
    torch_source: TorchSourceOption = "",
    alias: Annotated[bool, "also move the tag PIN to this image"] = False,
    output: Annotated[str, "the folder for image.lock.json and image.spdx.json"] = ".",
    sign: Annotated[
        str | None, "sign the image with this cosign key: a file, or env://NAME; default: do not sign"
    ] = None,
    unsupported: Annotated[bool, "sign an image whose Debian release gets no security updates"] = False,
) -> None:
    """Push the tested image under a tag that never moves, and write image.lock.json."""
    image_push.run(registry, locks.choose_pin(pin, (), torch_source, with_), alias, output, sign, unsupported)


@task(words="image")
def verify(
    image: Annotated[tuple[str, ...], "HOST/NAME@sha256:…; under ./inv, the flag can be left out"] = (),
    key: Annotated[str, "required: the public key, cosign.pub or env://NAME"] = "",
) -> None:
    """Check the signature, provenance and bill of materials of a pushed image: ./inv verify HOST/NAME@sha256:…"""
    if len(image) != 1:
        raise UsageError(f"found {len(image)} images, expected ./inv verify HOST/NAME@sha256:… --key cosign.pub")
    found = image_sign.verify(image[0], key)["buildDefinition"]
    try:
        commit = found["resolvedDependencies"][0]["digest"]["gitCommit"]
        say(f"verified {image[0]}: pin {found['externalParameters']['pin']}, commit {commit}")
    except (LookupError, TypeError) as error:
        raise UsageError(f"{image[0]}: its provenance lacks {error}, expected that of ./inv push --sign") from None


@task
def export(
    choice: Choice,
    format: Annotated[str, f"{', '.join(FORMATS)}; default: charliecloud, a folder for ch-run"] = "charliecloud",
    output: Annotated[str, "required: the file or the folder to write"] = "",
) -> None:
    """Write an image to a file or a folder, for sites without Docker."""
    hpc_export.run(choice, format, output)


@task
def sbom(
    pin: PinOption = None,
    with_: WithOption = (),
    torch_source: TorchSourceOption = "",
    output: Annotated[str | None, "the file to write; default: .cache/sbom/PIN.spdx.json"] = None,
) -> None:
    """Write an image's Debian and Python packages as SPDX 2.3 JSON."""
    from tooling.image import sbom as image_sbom  # spdx-tools takes 0.4 s to import

    image_sbom.run(locks.choose_pin(pin, (), torch_source, with_), output)
