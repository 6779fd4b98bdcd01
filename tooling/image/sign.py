"""Signatures of pushed images, with Debian's cosign: the digest, its provenance and its bill of materials.

`./inv push --sign KEY` signs. `./inv verify` checks, and so does every command with --key that runs an image. The
keys are files or variables (env://NAME), and nothing is sent to a public log of signatures. cosign stores the
signature and statements beside the image in its registry.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import parse_json
from cpu_train_stack.cli.printable import last_line
from cpu_train_stack.cli.say import say
from tooling.image import recipe

COSIGN = "cosign"
PASSWORD = "COSIGN_PASSWORD"  # noqa: S105 - a variable's name
# The types of the attestations, as cosign names them.
PROVENANCE, BILL = "slsaprovenance1", "spdxjson"
BUILD_TYPE = "urn:cpu-train-stack:build:1"
BUILDER = "urn:cpu-train-stack:inv-push"
_REFERENCE = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
_LOCAL_LOG = ("--insecure-ignore-tlog=true",)
_NO_LOG = ("--tlog-upload=false", "--yes")
_VARIABLE = "env://"
_LIMIT_SECONDS = 120
# Not "" by default: --key "$KEY" with an empty variable must not accept any image.
KeyOption = Annotated[
    str | None,
    "accept only an image that is signed with this key: cosign.pub or env://NAME; default: accept any image",
]
# What cosign prints, and what to do.
_CAUSES = (
    ("no matching signatures", "the signature was made with another key: check --key"),
    ("no signatures found", "the image is not signed: push it with ./inv push --sign KEY"),
    ("no matching attestations", "the attestation is missing, changed, or made with another key"),
    ("decrypt", f"the key's password is wrong: set {PASSWORD}"),
    ("ioctl for device", f"the key has a password: set {PASSWORD}"),
)


def provenance(labels: Mapping[str, str], locks: Mapping[str, str]) -> dict[str, Any]:
    """The predicate of a SLSA provenance (version 1): what the image was built from.

    `locks`: the sha256 of each lock by its name.
    """
    revision, source = labels[recipe.REVISION_LABEL], labels.get(recipe.SOURCE_LABEL, "unknown")
    base_digest = labels.get(recipe.BASE_DIGEST_LABEL, "").removeprefix("sha256:")
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"pin": labels[recipe.PIN_LABEL]},
            "resolvedDependencies": [
                {"name": "source", "uri": source, "digest": {"gitCommit": revision}},
                *({"name": name, "digest": {"sha256": sha256}} for name, sha256 in locks.items()),
                {
                    "name": "base",
                    "uri": labels.get(recipe.BASE_NAME_LABEL, "unknown"),
                    "digest": {"sha256": base_digest},
                },
            ],
        },
        "runDetails": {"builder": {"id": BUILDER}, "metadata": {}},
    }


def check_key(key: str) -> None:
    """Raises UsageError if cosign or the key is missing, or the key cannot sign: before anything is pushed."""
    find()
    name = key.removeprefix(_VARIABLE)
    if name != key and name not in os.environ:
        raise UsageError(f"--sign is {key!r}, but the variable {name} is not set: set it to the text of a key")
    if name == key and not Path(key).is_file():
        raise UsageError(f"--sign is {key!r}, expected a file of cosign generate-key-pair, or env://NAME")
    _cosign("sign-blob", "--key", key, *_NO_LOG, os.devnull, what=f"--sign {key}")


def sign(reference: str, key: str, predicate: Mapping[str, Any], bill: str) -> None:
    """Sign the image, and attach its provenance and its bill of materials. Raises UsageError."""
    common = ("--key", key, *_NO_LOG)
    _cosign("sign", *common, reference)
    with tempfile.TemporaryDirectory() as folder:
        for kind, text in ((PROVENANCE, json.dumps(predicate)), (BILL, bill)):
            file = Path(folder) / f"{kind}.json"
            file.write_text(text, encoding="utf-8")
            _cosign("attest", *common, "--type", kind, "--predicate", str(file), reference)
    say(f"signed {reference}, with its provenance and its bill of materials")


def verify(reference: str, key: str) -> dict[str, Any]:
    """Check the signature and both attestations of HOST/NAME@DIGEST. Returns the provenance. Raises UsageError."""
    if not _REFERENCE.fullmatch(reference):
        raise UsageError(f"{reference!r} is not an image by digest, expected HOST/NAME@sha256:…")
    if not key.startswith(_VARIABLE) and not Path(key).is_file():
        raise UsageError(
            f"--key is {repr(key) if key else 'missing'}, expected the file cosign.pub, or env://NAME"
        )
    _cosign("verify", "--key", key, *_LOCAL_LOG, reference)
    found = {}
    for kind in (PROVENANCE, BILL):
        lines = _cosign("verify-attestation", "--key", key, *_LOCAL_LOG, "--type", kind, reference)
        try:
            payload = parse_json(lines.splitlines()[-1])["payload"]
            found[kind] = parse_json(base64.b64decode(payload).decode())["predicate"]
        except (ValueError, LookupError, TypeError) as error:
            raise UsageError(f"{reference}: its attestation of type {kind} cannot be read ({error!r})") from None
    provenance: dict[str, Any] = found[PROVENANCE]
    definition = provenance.get("buildDefinition") if isinstance(provenance, dict) else None
    build_type = definition.get("buildType") if isinstance(definition, dict) else None
    if build_type != BUILD_TYPE:
        raise UsageError(
            f"{reference}: its provenance has the build type {build_type!r}, expected {BUILD_TYPE!r}: "
            "check that ./inv push --sign pushed this image"
        )
    return provenance


def verify_with(key: str | None, reference: str) -> None:
    """Check an image before it is pulled or named in a manifest, if --key was given. Raises UsageError."""
    if key is not None:
        verify(reference, key)
        say(f"verified {reference} with {key}")


def find() -> str:
    """cosign's path. Raises UsageError."""
    path = shutil.which(COSIGN)
    if path is None:
        raise UsageError(
            f"{COSIGN} is not on PATH: install Debian 13's package cosign, which also works on Debian 12"
        )
    return path


def _cosign(command: str, *arguments: str, what: str = "") -> str:
    """The output of a cosign command. Raises UsageError with its cause, about `what` or the last argument."""
    try:
        done = subprocess.run(
            [find(), command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"cosign {command} took more than {_LIMIT_SECONDS} s: check the registry") from None
    if done.returncode != 0:
        said = last_line(done.stderr)
        fix = next((fix for text, fix in _CAUSES if text in done.stderr), "check the registry and the key")
        raise UsageError(f"{what or arguments[-1]}: cosign {command} failed ({said}): {fix}")
    return done.stdout
