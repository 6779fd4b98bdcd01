"""Runs pip for a pin's Python and platform, with the pip configuration of the host.

Mirrors, proxies, certificates and find-links of the host apply. pip builds nothing from source.
"""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.signals import die_with_parent
from tooling.basis.paths import ROOT
from tooling.pins.pin import Pin

TARGET_PIP = ROOT / "tooling" / "wheels" / "target_pip.py"
# One retry and a short timeout: pip reports an index that does not answer, instead of hanging.
BOUNDED = ("--retries", "1", "--timeout", "20")
# pip's warning when it has rejected 13 versions of a package, and how much output to search for it.
_BACKTRACKS = b"INFO: This is taking longer than usual"
_HEAD = 1 << 24


def target_options(pin: Pin) -> list[str]:
    """pip's options for wheels of the pin's Python on its Debian release: x86-64, its glibc or an older one.

    Source of the tags: PEP 600 (manylinux_x_y) with its aliases for older names.
    """
    options = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", pin.python]
    options += ["--abi", f"cp{pin.python.replace('.', '')}", "--abi", "abi3", "--abi", "none"]
    for minor in range(pin.debian.glibc_minor, 4, -1):
        options += ["--platform", f"manylinux_2_{minor}_x86_64"]
    for alias in ("manylinux2014", "manylinux2010", "manylinux1", "linux"):
        options += ["--platform", f"{alias}_x86_64"]
    return options


def markers(pin: Pin) -> dict[str, str]:
    """The environment markers (PEP 508) whose values differ between the pin's Python and this Python."""
    full = pin.debian.python_full
    return {"python_version": pin.python, "python_full_version": full, "implementation_version": full}


def run(
    arguments: Sequence[str],
    *,
    scratch: Path,
    pin: Pin | None = None,
    heartbeat: Callable[[], None] | None = None,
    patience: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the pip of this environment. With `pin`, select wheels for the pin's Python.

    Calls `heartbeat` every ten seconds while pip runs. pip's temporary files go to `scratch`, so that they are
    on the same disk as the result and the caller deletes them. With `patience`, stop pip this many seconds after
    its warning that it tries one version after the other. It keeps each wheel that it tries: 20 GB in seven
    minutes, without an end, for s3fs (2026-11-25).
    """
    program, target = ["-m", "pip"], list[str]()
    if pin:
        program, target = [str(TARGET_PIP), json.dumps(markers(pin))], target_options(pin)
    # -P: the current folder, or that of the program, may have a module named pip.
    argv = [sys.executable, "-P", *program, *arguments, *target]
    # Without colors, whatever FORCE_COLOR says: callers read the output.
    argv += [*BOUNDED, "--disable-pip-version-check", "--no-input", "--no-color"]
    environ = {**os.environ, "TMPDIR": str(scratch)}
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(
            argv, env=environ, stdout=output, stderr=subprocess.STDOUT, text=True, preexec_fn=die_with_parent
        ) as process:
            returncode, warned = None, math.inf
            try:
                while returncode is None:
                    try:
                        returncode = process.wait(timeout=min(10, patience or 10))
                    except subprocess.TimeoutExpired:
                        if heartbeat:
                            heartbeat()
                        if patience is not None and _BACKTRACKS in os.pread(output.fileno(), _HEAD, 0):
                            warned = min(warned, time.monotonic())
                            if time.monotonic() - warned >= patience:
                                process.terminate()
            finally:
                if returncode is None:  # interrupted: without kill, Popen would wait for pip
                    process.kill()
        output.seek(0)
        return subprocess.CompletedProcess(argv, returncode, stdout=output.read(), stderr="")


_LOGIN = "the index requires credentials: add them to pip's configuration or to a keyring"
# A part of pip's output -> the cause and the fix. The first match wins.
_NETWORK = (
    (
        "Proxy Authentication Required",
        "the proxy requires credentials: set HTTPS_PROXY to http://USER:PASSWORD@HOST:PORT",
    ),
    ("Tunnel connection failed", "the proxy refuses to connect to the package index: check proxy and index"),
    ("Failed to resolve", "the package index's name does not resolve: check network and proxy"),
    ("Connection refused", "the package index refuses connections: check network and proxy"),
    ("timed out", "the package index does not answer: check network and proxy"),
    ("CERTIFICATE_VERIFY_FAILED", "the index's certificate is not trusted: set PIP_CERT to your CA bundle"),
    ("401 Error", _LOGIN),
    ("401 Client Error", _LOGIN),
    ("error responses", "the package index reports an internal error: retry later"),
)
_CAUSES = (
    ("No space left on device", "the disk is full: free some space and run the same command again"),
    (
        "DO NOT MATCH THE HASHES",
        "a wheel's sha256 differs from the lock: the index serves another file; nothing was kept",
    ),
    *_NETWORK,
)
# In pip's log only: why pip skips an index. Not 403, which some indexes answer for packages that they do not have.
_SKIPPED = re.compile(r"Could not fetch URL .*(?:(?:401|407) Client Error|error responses).*\n")


# pip's explanation of a conflict: each package that asks for a version, the user and constraints among them.
_CONFLICT = re.compile(r"The conflict is caused by:\n((?: +.*\n)+)")


def conflict(output: str) -> list[str]:
    """The requirements that contradict each other, as pip words them. Empty if pip reports no conflict."""
    found = _CONFLICT.search(output)
    return [line.strip() for line in found[1].splitlines()] if found else []


def complaints(output: str) -> str:
    """The warnings and errors in pip's output. --quiet prints only these, but hides why versions conflict."""
    return "".join(line for line in output.splitlines(keepends=True) if line.startswith(("WARNING:", "ERROR:")))


def skipped(log: str) -> str:
    """The lines of pip's log about indexes that pip skips because of their answer."""
    return "".join(_SKIPPED.findall(log))


def has_network_trouble(output: str) -> bool:
    """Whether pip could not reach an index. pip continues with the other indexes."""
    return any(needle in output for needle, _ in _NETWORK)


def failure(action: str, result: subprocess.CompletedProcess[str]) -> UsageError:
    """The error for a failed `action` of pip, in one line: the reason, and the fix if the reason is known."""
    output = result.stdout
    for needle, meaning in _CAUSES:
        if needle in output:
            return UsageError(f"{action}: {meaning}")
    if causes := conflict(output):
        return UsageError(f"{action}: {'; '.join(causes)}")
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    reason = errors[-1].removeprefix("ERROR:").strip() if errors else f"pip exited with {result.returncode}"
    return UsageError(f"{action}: {reason}")
