"""The comparison of torch's suite with both backends, and the documented differences."""

from pathlib import Path

import pytest

from tooling.basis.paths import ROOT
from tooling.checks import conformance
from tooling.checks.conformance import Comparison, ConformanceRow
from tooling.engine.api import Engine
from tooling.image.build import Image
from tooling.image.choice import Choice


def comparison(*rows: ConformanceRow) -> Comparison:
    return Comparison(3, "image", "2026-11-20", {"ccl": 1.0, "gloo": 1.0}, rows)


def test_only_tests_that_pass_with_gloo_and_not_with_ccl_are_differences() -> None:
    compared = comparison(
        ConformanceRow("test_both", "passed", "passed", "", ""),
        ConformanceRow("test_neither", "failed", "failed", "", ""),
        ConformanceRow("test_more", "passed", "skipped", "", ""),
        ConformanceRow("test_less", "failed", "passed", "ValueError: no", ""),
        ConformanceRow("test_left_out", "skipped", "passed", "no GPU", ""),
        ConformanceRow("test_sparse_all_reduce_sum", "failed", "passed", "", "ccl has no sparse tensors"),
    )
    assert [row.test for row in compared.undocumented()] == ["test_less", "test_left_out"]
    assert compared.counts("ccl") == {"passed": 2, "failed": 3, "skipped": 1}


def test_resolved_differences_and_terminated_tests_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    hung = "RuntimeError: Process 1 terminated or timed out after 45.1 seconds"
    compared = comparison(
        ConformanceRow("test_sparse_all_reduce_sum", "passed", "passed", "", "ccl has no sparse tensors"),
        ConformanceRow("test_barrier", "failed", "failed", hung, ""),
        ConformanceRow("test_monitored_barrier_gloo", "failed", "passed", "", "refused by name"),
        ConformanceRow(
            "test_monitored_barrier_wait_all_ranks", "skipped", "skipped", "needs 4 ranks", "refused by name"
        ),
    )
    assert compared.resolved() == ["test_sparse_all_reduce_sum"]
    assert [row.test for row in compared.hung()] == ["test_barrier"]
    conformance.show(compared, ROOT / "3.json")
    assert "test_barrier" in capsys.readouterr().out


def test_the_documented_differences_are_the_known_ones() -> None:
    document = (ROOT / "docs" / "ccl.md").read_text(encoding="utf-8")
    for test, reason in conformance.DIFFERENCES.items():
        assert f"| `{test}` | {reason} |" in document
    assert document.count("| `test_") == len(conformance.DIFFERENCES)


def test_both_backends_run_in_the_same_image_although_a_build_moves_its_tag(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image, used = Image("cpu-train-stack:2.13", "sha256:1", 0, built=False, seconds=0.0), []

    def run_suite(image: str, backend: str, _ranks: int, _only: str) -> list[dict[str, str]]:
        used.append((image, backend))
        return [{"test": "test_both", "status": "passed", "reason": ""}]

    monkeypatch.setattr(Choice, "ensure", lambda _choice: (Engine("unix:///sock", 1), image))
    monkeypatch.setattr(conformance, "run_suite", run_suite)
    monkeypatch.setattr(conformance, "FOLDER", tmp_path)
    conformance.run(None, ranks=2, only="", as_json=False)
    assert used == [("sha256:1", "ccl"), ("sha256:1", "gloo")]
