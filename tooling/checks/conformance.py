"""`./inv dev conformance`: compares ccl with gloo in torch's own suite for process groups, in the image."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit
from rich.table import Table

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import MOST_RANKS, check_at_least
from cpu_train_stack.cli.say import say
from tooling.basis.console import console
from tooling.basis.paths import CACHE, ROOT, shown
from tooling.cluster.compose import BACKENDS
from tooling.engine import api, docker
from tooling.image.choice import Choice

CHECKS = ROOT / "bindings" / "tests"
FOLDER = CACHE / "conformance"
# Far more than the suite takes. bindings/tests/conformance.py limits the time of each test.
LIMIT_SECONDS = 3600.0

# Patterns (fnmatch) of the tests that pass with gloo and not with ccl, and the reason.
DIFFERENCES: Mapping[str, str] = {
    "test_ddp_logging_data_cpu": 'DDP\'s log calls every backend that torch does not know "custom"',
    "test_monitored_barrier_*": "torch refuses monitored_barrier by name for every backend but gloo",
    "test_sparse_all_reduce_sum": "ccl has no sparse tensors",
}


@dataclass(frozen=True)
class ConformanceRow:
    """One test: `passed`, `failed` or `skipped` with each backend.

    `reason`: the exception, or why the test was skipped. `known`: the reason in DIFFERENCES, or "".
    """

    test: str
    ccl: str
    gloo: str
    reason: str
    known: str

    @property
    def differs(self) -> bool:
        """Whether the test passes with gloo and not with ccl."""
        return self.gloo == "passed" and self.ccl != "passed"


@dataclass(frozen=True)
class Comparison:
    """The results of the suite with both backends, for a number of ranks on one host."""

    ranks: int
    image: str
    date: str
    seconds: dict[str, float]
    rows: tuple[ConformanceRow, ...]

    def counts(self, backend: str) -> Counter[str]:
        """The numbers of tests that passed, failed and were skipped."""
        return Counter(getattr(row, backend) for row in self.rows)

    def undocumented(self) -> list[ConformanceRow]:
        """The differences that are not in DIFFERENCES."""
        return [row for row in self.rows if row.differs and not row.known]

    def resolved(self) -> list[str]:
        """The patterns in DIFFERENCES whose tests ran and no longer differ."""
        ran = {_pattern(row.test) for row in self.rows}
        differing = {_pattern(row.test) for row in self.rows if row.differs}
        return [pattern for pattern in DIFFERENCES if pattern in ran - differing]

    def hung(self) -> list[ConformanceRow]:
        """The tests whose ranks were terminated."""
        return [row for row in self.rows if "terminated or timed out after" in row.reason]


def _pattern(test: str) -> str:
    """The pattern in DIFFERENCES that matches the name of a test, or ""."""
    return next((pattern for pattern in DIFFERENCES if fnmatchcase(test, pattern)), "")


def compare(image: str, ranks: int, only: str) -> Comparison:
    """Run the tests whose names match the regular expression `only`, once with each backend."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    seconds = {}
    for backend in BACKENDS:
        started = time.monotonic()
        found[backend] = {row["test"]: row for row in run_suite(image, backend, ranks, only)}
        seconds[backend] = round(time.monotonic() - started, 1)
        say(f"{backend}: {len(found[backend])} tests in {seconds[backend]:.0f} s")
    rows = []
    for test, ccl in found["ccl"].items():
        gloo = found["gloo"][test]
        reason = ccl["reason"] if ccl["status"] != "passed" else gloo["reason"]
        rows.append(
            ConformanceRow(test, ccl["status"], gloo["status"], reason, DIFFERENCES.get(_pattern(test), ""))
        )
    return Comparison(ranks, image, time.strftime("%Y-%m-%d", time.gmtime()), seconds, tuple(rows))


def run_suite(image: str, backend: str, ranks: int, only: str) -> list[dict[str, Any]]:
    """Run bindings/tests/conformance.py and return its rows. Its log is .cache/conformance/BACKEND-RANKS.log."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    log = FOLDER / f"{backend}-{ranks}.log"
    with log.open("wb") as stream:
        done = docker.run(
            image,
            ["python", "/checks/conformance.py", f"--backend={backend}", f"--ranks={ranks}", f"--only={only}"],
            [f"--volume={CHECKS}:/checks:ro"],
            subprocess.PIPE,
            stream,
            LIMIT_SECONDS,
        )
    try:
        rows: list[dict[str, Any]] = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise UsageError(
            f"the suite ended with exit code {done.returncode}, without a result: see {log}"
        ) from None
    if not rows:
        raise UsageError(f"no test matches {only!r}: the logs in {log.parent} contain the names of tests")
    return rows


def run(pin_name: str | None, ranks: int, only: str, as_json: bool) -> None:
    """Compare the backends, write .cache/conformance/RANKS.json, and print the differences.

    Raises Exit with code 1 for a difference that is not in DIFFERENCES.
    """
    check_at_least("--ranks", ranks, 1, MOST_RANKS)
    if ranks < 2:
        raise UsageError(f"--ranks is {ranks}, expected 2 or more")
    _, image = Choice(pin_name, engine=api.DOCKER).ensure()
    say(f"running torch's suite with {ranks} ranks and {' and '.join(BACKENDS)}: this takes some minutes")
    comparison = compare(image.id, ranks, only)  # a build may move the tag
    document = json.dumps(asdict(comparison), indent=1)
    result = FOLDER / f"{ranks}.json"
    result.write_text(document + "\n", encoding="utf-8")
    if as_json:
        print(document)
    else:
        show(comparison, result)
    if resolved := comparison.resolved():
        say(f"with this torch, these documented tests do not differ: {', '.join(resolved)}")
    undocumented = [row.test for row in comparison.undocumented()]
    if undocumented:
        raise Exit(
            f"these tests pass with gloo and not with ccl: {', '.join(undocumented)}: fix ccl, or add the reason "
            "to DIFFERENCES in tooling/checks/conformance.py",
            code=1,
        )


def show(comparison: Comparison, result: Path) -> None:
    """Print the counts, and the tests that have different results or whose ranks were terminated."""
    terminal = console(180)
    title = f"torch's suite, {comparison.ranks} ranks, {comparison.date}"
    counts = Table("backend", "passed", "failed", "skipped", "seconds", title=title, title_justify="left")
    for backend in BACKENDS:
        found = comparison.counts(backend)
        cells = [str(found[status]) for status in ("passed", "failed", "skipped")]
        counts.add_row(backend, *cells, f"{comparison.seconds[backend]:.0f}")
    terminal.print(counts)
    differences = Table(title="differences and terminated tests", title_justify="left")
    for column in ("test", "ccl", "gloo", "reason"):
        differences.add_column(column, overflow="fold")
    hung = comparison.hung()
    for row in comparison.rows:
        if row.ccl != row.gloo or row in hung:
            differences.add_row(row.test, row.ccl, row.gloo, row.known or row.reason)
    terminal.print(differences)
    terminal.print(f"all tests: {shown(result)}")
