"""Calls of pip for a pin's Python and platform, with the host's own pip configuration.

Mirrors, proxies, certificates and find-links of the host all apply. Nothing is built from source.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tooling.basis.errors import UsageError
from tooling.basis.paths import ROOT
from tooling.pins.pin import Pin

TARGET_PIP = ROOT / "tooling" / "wheels" / "target_pip.py"
# One try more than none, and a bounded wait: an index that does not answer ends in a message, not in a hang.
BOUNDED = ("--retries", "1", "--timeout", "20")


def target_options(pin: Pin) -> list[str]:
    """pip's options for wheels of the pin's Python on its Debian release (x86-64, every older glibc too).

    Source of the tags: PEP 600 (manylinux_x_y) and its aliases for the names before it.
    """
    options = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", pin.python]
    options += ["--abi", f"cp{pin.python.replace('.', '')}", "--abi", "abi3", "--abi", "none"]
    for minor in range(pin.debian.glibc_minor, 4, -1):
        options += ["--platform", f"manylinux_2_{minor}_x86_64"]
    for alias in ("manylinux2014", "manylinux2010", "manylinux1", "linux"):
        options += ["--platform", f"{alias}_x86_64"]
    return options


def markers(pin: Pin) -> dict[str, str]:
    """The environment markers (PEP 508) in which the pin's Python differs from the one that runs this."""
    full = pin.debian.python_full
    return {"python_version": pin.python, "python_full_version": full, "implementation_version": full}


def run(
    arguments: Sequence[str], *, scratch: Path, pin: Pin | None = None, heartbeat: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs this environment's pip, as if on the pin's Python where a pin is given.

    `heartbeat` is called every ten seconds while it works.
    pip's temporary files go to `scratch`, so that they are on the same disk as the result and end with it.
    """
    program, target = ["-m", "pip"], list[str]()
    if pin:
        program, target = ["-P", str(TARGET_PIP), json.dumps(markers(pin))], target_options(pin)
    argv = [sys.executable, *program, *arguments, *target]
    argv += [*BOUNDED, "--disable-pip-version-check", "--no-input"]
    environ = {**os.environ, "TMPDIR": str(scratch)}
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(argv, env=environ, stdout=output, stderr=subprocess.STDOUT, text=True) as process:
            returncode = None
            try:
                while returncode is None:
                    try:
                        returncode = process.wait(timeout=10)
                    except subprocess.TimeoutExpired:
                        if heartbeat:
                            heartbeat()
            finally:
                if returncode is None:  # interrupted: pip would go on, and so would the wait for it
                    process.kill()
        output.seek(0)
        return subprocess.CompletedProcess(argv, returncode, stdout=output.read(), stderr="")


# What pip says -> what a user should hear. The first that occurs wins.
_NETWORK = (
    ("Failed to resolve", "the package index's name does not resolve: check network and proxy"),
    ("Connection refused", "the package index refuses connections: check network and proxy"),
    ("timed out", "the package index does not answer: check network and proxy"),
    ("CERTIFICATE_VERIFY_FAILED", "the index's certificate is not trusted: set PIP_CERT to your CA bundle"),
)
_CAUSES = (
    ("No space left on device", "the disk is full: free some space and run the same command again"),
    (
        "DO NOT MATCH THE HASHES",
        "a wheel's sha256 is not the lock's: the index serves another file; nothing was kept",
    ),
    *_NETWORK,
    ("401 ", "the index wants credentials: put them into pip's configuration or a keyring"),
)


def has_network_trouble(output: str) -> bool:
    """Whether pip could not talk to some index, without which it may have gone on."""
    return any(needle in output for needle, _ in _NETWORK)


def failure(what: str, result: subprocess.CompletedProcess[str]) -> UsageError:
    """One line for a pip that failed: what was wanted, pip's reason, what to do."""
    output = result.stdout
    for needle, meaning in _CAUSES:
        if needle in output:
            return UsageError(f"{what}: {meaning}")
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    reason = errors[-1].removeprefix("ERROR:").strip() if errors else f"pip exited with {result.returncode}"
    return UsageError(f"{what}: {reason}")
