"""How two runs of torch's suite are compared, and that the differences are those which are documented."""

from __future__ import annotations

from tooling.basis.paths import ROOT
from tooling.checks import conformance
from tooling.checks.conformance import Comparison, Row


def comparison(*rows: Row) -> Comparison:
    return Comparison(3, "image", "2026-11-20", {"ccl": 1.0, "gloo": 1.0}, rows)


def test_only_what_gloo_passes_and_ccl_does_not_is_a_difference() -> None:
    compared = comparison(
        Row("test_both", "passed", "passed", "", ""),
        Row("test_neither", "failed", "failed", "", ""),
        Row("test_more", "passed", "skipped", "", ""),
        Row("test_less", "failed", "passed", "ValueError: no", ""),
        Row("test_left_out", "skipped", "passed", "no GPU", ""),
        Row("test_sparse_all_reduce_sum", "failed", "passed", "", "ccl has no sparse tensors"),
    )
    assert [row.test for row in compared.undocumented()] == ["test_less", "test_left_out"]
    assert compared.counts("ccl") == {"passed": 2, "failed": 3, "skipped": 1}


def test_a_difference_that_is_gone_is_noticed_and_so_is_a_test_that_had_to_be_ended() -> None:
    hung = "RuntimeError: Process 1 terminated or timed out after 45.1 seconds"
    compared = comparison(
        Row("test_sparse_all_reduce_sum", "passed", "passed", "", "ccl has no sparse tensors"),
        Row("test_barrier", "failed", "passed", hung, ""),
    )
    assert compared.resolved() == ["test_sparse_all_reduce_sum"]
    assert [row.test for row in compared.hung()] == ["test_barrier"]


def test_the_documented_differences_are_the_known_ones() -> None:
    document = (ROOT / "docs" / "ccl.md").read_text(encoding="utf-8")
    for test, reason in conformance.DIFFERENCES.items():
        assert f"| `{test}` | {reason} |" in document
    assert document.count("| `test_") == len(conformance.DIFFERENCES)
