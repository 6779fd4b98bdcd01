"""Run every collective and small training runs with a sanitizer, on 2 and 3 ranks. Exit code 1 on any finding.

    python sanitize.py BUILD ONECCL [--sanitizer thread] [--ranks 2 3]

BUILD is build.py, ONECCL the unpacked oneccl-devel wheel. Requires the tools of build.py, and g++'s libasan or
libtsan. Leaks are not detected, since Python and torch leave much memory allocated at exit: cycles.py measures
what groups leave behind. oneCCL, torch and Python are not instrumented, so their errors are not detected.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from transport import variables

HERE = Path(__file__).resolve().parent
LIMIT_SECONDS = 600
# The library to preload, the variable of its options, and the options. ThreadSanitizer sees only a part of what
# libraries do that are not instrumented, so these are ignored.
SANITIZERS = {
    "address": ("libasan.so", "ASAN_OPTIONS", "detect_leaks=0:exitcode=86"),
    "thread": ("libtsan.so", "TSAN_OPTIONS", "ignore_noninstrumented_modules=1:exitcode=86:report_bugs=1"),
}
# Address-space randomization may place libraries in the address range of ThreadSanitizer.
FIXED_ADDRESSES = ["setarch", "--addr-no-randomize"]


def build(script: Path, oneccl: Path, scratch: Path, sanitizer: str) -> Path:
    """The directory to import the instrumented package from."""
    command = [sys.executable, str(script), f"--oneccl={oneccl}", f"--output={scratch}", f"--sanitize={sanitizer}"]
    subprocess.run(command, check=True)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch / "site")
    return scratch / "site"


def library(name: str) -> str:
    """The path of a library of g++."""
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run_ranks(site: Path, sanitizer: str, script: str, ranks: int, port: int) -> bool:
    """Whether the script exits with 0 on every rank. A finding of the sanitizer is exit code 86."""
    preload, variable, options = SANITIZERS[sanitizer]
    common = {
        "PYTHONPATH": str(site),
        "LD_PRELOAD": f"{library(preload)} {library('libstdc++.so')}",
        variable: options,
        "OMP_NUM_THREADS": "1",
        "CCL_LOG_LEVEL": "error",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
    }
    started = []
    for rank in range(ranks):
        environ = {**os.environ, **common, **variables(rank, ranks), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        prefix = FIXED_ADDRESSES if sanitizer == "thread" else []
        command = [*prefix, sys.executable, str(HERE / script)]
        started.append(subprocess.Popen(command, env=environ))
    try:
        codes = [process.wait(LIMIT_SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    print(f"{script}: {ranks} ranks exited with {codes}", file=sys.stderr)
    return not any(codes)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("oneccl", type=Path)
    parser.add_argument("--sanitizer", choices=SANITIZERS, default="address")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        site = build(arguments.build, arguments.oneccl, Path(scratch), arguments.sanitizer)
        clean = [
            run_ranks(site, arguments.sanitizer, script, ranks, 29600 + 2 * ranks + number)
            for number, script in enumerate(("collectives.py", "training.py"))
            for ranks in arguments.ranks
        ]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
