"""What `bench` measures, how often, and its report: the parts without torch."""

from __future__ import annotations

import argparse
import math
import threading
from functools import reduce
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpu_train_stack.bench import cases, report, transfers
from cpu_train_stack.bench.cases import Case, StepTime, powers_of_two
from cpu_train_stack.cli.errors import UsageError

MIB = 1 << 20


def test_the_default_covers_the_sizes_of_the_targets() -> None:
    default = set(cases.default())
    sizes = (4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20)
    assert {Case("all_reduce", dtype, size) for dtype, size in product(("float32", "bfloat16"), sizes)} <= default
    assert {case.collective for case in default} == {"all_reduce", "broadcast", "all_gather", "reduce_scatter"}


def test_given_values_are_combined() -> None:
    assert cases.chosen(["broadcast"], ["float32", "bfloat16"], [4096]) == [
        Case("broadcast", "float32", 4096),
        Case("broadcast", "bfloat16", 4096),
    ]
    assert {case.collective for case in cases.chosen(None, None, [4096])} == {"all_reduce"}
    assert cases.chosen(None, None, None) == cases.default()


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("4K", 4096), ("25M", 25 * MIB), ("1G", 1 << 30), (" 1 ", 1)]
)
def test_a_size_is_bytes_or_has_a_unit(text: str, size: int) -> None:
    assert cases.parse_size(text) == size


@pytest.mark.parametrize("text", ["0", "-4", "4k", "4KB", "1.5M", "", "2G", "4 K", "M"])
def test_an_invalid_size_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected bytes, 64K or 25M, at most 1G"):
        cases.parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"), [(4096, "4 KiB"), (25 * MIB, "25 MiB"), (1 << 30, "1 GiB"), (4092, "4092 B"), (1, "1 B")]
)
def test_a_size_is_readable(size: int, text: str) -> None:
    assert cases.readable(size) == text


def in_bf16(number: float) -> float:
    """The nearest number with 8 significant bits, to even."""
    if not number:
        return 0.0
    mantissa, exponent = math.frexp(number)
    return math.ldexp(round(mantissa * 256), exponent - 8)


def in_a_tree(numbers: list[float]) -> float:
    """Sums of two, each rounded."""
    while len(numbers) > 1:
        numbers = [in_bf16(sum(numbers[place : place + 2])) for place in range(0, len(numbers), 2)]
    return numbers[0]


@pytest.mark.parametrize("collective", cases.COLLECTIVES)
def test_no_order_of_the_ranks_rounds_a_result(collective: str) -> None:
    for ranks in (1, 2, 22, 23, 32, 64, 255, 256, 257, 512):
        numbers = [float(cases.input_of(rank, collective)) for rank in range(ranks)]
        assert numbers == [in_bf16(one) for one in numbers]
        assert numbers[0] != 0
        if collective in ("all_reduce", "reduce_scatter"):
            for first in (0, ranks // 3):
                ring = reduce(lambda total, one: in_bf16(total + one), numbers[first:] + numbers[:first])
                assert ring == sum(numbers)
            assert in_a_tree(numbers) == sum(numbers)


@pytest.mark.parametrize(("ranks", "elements"), [(1, 1024), (2, 1024), (3, 1023), (2000, 2000)])
def test_every_rank_has_an_equal_part_of_at_least_one_element(ranks: int, elements: int) -> None:
    assert cases.complete_elements(Case("all_gather", "float32", 4096), ranks) == elements


def test_a_block_takes_its_time_and_the_blocks_fill_the_row() -> None:
    plan = cases.repetitions({"ccl": 10e-6, "gloo": 2e-3}, row_seconds=1.0)
    assert plan.calls == {"ccl": 500, "gloo": 10}  # 2000 would fill the block, but exceed MOST_CALLS
    assert plan.blocks == 40


@pytest.mark.parametrize(("seconds", "blocks"), [(10.0, cases.FEWEST_REPETITIONS), (1e-9, cases.MOST_REPETITIONS)])
def test_the_number_of_blocks_is_limited(seconds: float, blocks: int) -> None:
    plan = cases.repetitions({"gloo": seconds}, row_seconds=1.0)
    assert plan.blocks == blocks
    assert 1 <= plan.calls["gloo"] <= cases.MOST_CALLS


def test_a_collective_ends_with_its_last_rank() -> None:
    assert cases.longest([[1.0, 5.0, 2.0], [3.0, 4.0, 2.0]]) == [3.0, 5.0, 2.0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([7.0], (7.0, 7.0, 7.0)), ([3.0, 1.0, 2.0], (1.0, 2.0, 3.0)), ([4.0, 1.0, 3.0, 2.0], (1.5, 2.5, 3.5))],
)
def test_quartiles(values: list[float], expected: tuple[float, float, float]) -> None:
    assert cases.quartiles(values) == expected


@pytest.mark.parametrize(
    ("collective", "ranks", "nodes", "expected"),
    [
        ("all_reduce", 2, 1, (report.MEMORY_COPY, 1.0)),
        ("reduce_scatter", 2, 1, (report.MEMORY_COPY, 0.75)),
        ("all_gather", 4, 1, (report.MEMORY_COPY, 0.625)),
        ("broadcast", 8, 1, (report.MEMORY_COPY, 0.5)),
        ("all_reduce", 2, 2, (report.TCP_BOTH_WAYS, 1.0)),
        ("all_reduce", 4, 4, (report.TCP_BOTH_WAYS, 1.5)),
        ("all_gather", 2, 2, (report.TCP_BOTH_WAYS, 0.5)),
        ("reduce_scatter", 4, 4, (report.TCP_BOTH_WAYS, 0.75)),
        ("broadcast", 2, 2, (report.TCP_ONE_WAY, 1.0)),
        ("all_reduce", 1, 1, None),
        ("all_reduce", 4, 2, None),
    ],
)
def test_the_limit_of_a_collective(
    collective: str, ranks: int, nodes: int, expected: tuple[str, float] | None
) -> None:
    assert report.limit(collective, ranks, nodes) == expected


def test_a_share_is_a_fraction_of_the_limit() -> None:
    assert report.share(algbw=4.0, ceiling=12.0, factor=1.5) == 0.5


def test_a_document_has_the_contracts_keys_and_figures() -> None:
    seconds = (0.004, 0.005, 0.007)
    row = report.row(Case("all_reduce", "float32", 25 * MIB), 25 * MIB, "ccl", ranks=2, nodes=1, seconds=seconds)
    document = report.document([row], {(report.MEMORY_COPY, 25 * MIB): [12.0, 14.0, 13.0]}, 1, {"pin": "2.13"})
    assert document["pin"] == "2.13"
    assert document["ceilings"] == [
        {
            "where": "one-container",
            "what": "memory-copy",
            "bytes": 26214400,
            "gbytes_per_s": 13.0,
            "gbytes_per_s_quartiles": [12.0, 14.0],
            "samples": 3,
        }
    ]
    assert document["rows"] == [
        {
            "where": "one-container",
            "backend": "ccl",
            "collective": "all_reduce",
            "dtype": "float32",
            "bytes": 26214400,
            "ranks": 2,
            "latency_us": 5000.0,
            "latency_us_quartiles": [4000.0, 7000.0],
            "algbw_gbytes_per_s": 5.243,
            "ceiling": "memory-copy",
            "ceiling_factor": 1.0,
            "ceiling_share": 0.403,
        }
    ]
    assert report.table(document).splitlines()[1].endswith("40%")


@pytest.mark.parametrize(
    ("size", "copied", "share"),
    [(4096, 4096, None), (MIB, 25 * MIB, None), (MIB, MIB, 0.5)],
    ids=["small", "a copy of another size", "large"],
)
def test_a_share_is_of_a_copy_of_the_same_size(size: int, copied: int, share: float | None) -> None:
    seconds = size / 5e9
    row = report.row(Case("all_reduce", "float32", size), size, "ccl", 2, 1, (seconds, seconds, seconds))
    document = report.document([row], {(report.MEMORY_COPY, copied): [10.0]}, 1, {})
    assert document["rows"][0]["ceiling_share"] == share


def test_ranks_on_both_nodes_have_no_ceiling() -> None:
    row = report.row(Case("all_reduce", "float32", 25 * MIB), 25 * MIB, "ccl", 4, 2, (0.1, 0.1, 0.1))
    document = report.document([row], {(report.MEMORY_COPY, 25 * MIB): [13.0]}, 2, {})
    assert (document["rows"][0]["ceiling"], document["rows"][0]["ceiling_share"]) == (None, None)
    assert document["rows"][0]["where"] == "two-containers"


def test_a_stream_transfers_in_both_directions_at_the_same_time() -> None:
    listener = transfers.listen("127.0.0.1")
    address, port = listener.getsockname()[:2]
    ends: list[transfers.TransferStream] = []
    other = threading.Thread(target=lambda: ends.append(transfers.connect(address, port)))
    other.start()
    here = transfers.accept(listener)
    other.join(20)
    (there,) = ends
    seconds: list[float] = []
    # More than the buffers between the ends hold: neither end may wait for the other to finish first.
    for send, receive in ((16 * MIB + 3, 16 * MIB + 5), (1, 0), (0, 7)):
        opposite = threading.Thread(target=lambda s=send, r=receive: seconds.append(there.transfer(r, s)))
        opposite.start()
        seconds.append(here.transfer(send, receive))
        opposite.join(20)
    assert len(seconds) == 6
    assert min(seconds) > 0
    there.close()
    with pytest.raises(UsageError, match="read the log of its rank"):
        here.transfer(0, 1)
    here.close()


def test_a_copier_copies_all_bytes() -> None:
    copier = transfers.Copier(1 << 16)
    assert copier.copied == 1 << 15
    copier._source[-1] = 7
    assert copier._target != copier._source
    assert copier.copy(1) > 0
    assert copier._target == copier._source


@given(
    offset=st.floats(0, 1),
    a_sample=st.floats(1e-3, 1),
    ratio=st.floats(0.01, 2),
    communication=st.floats(1e-3, 1),
)
def test_the_batch_gives_communication_its_ratio_of_computing(
    offset: float, a_sample: float, ratio: float, communication: float
) -> None:
    step = StepTime.fit((4, offset + 4 * a_sample), (12, offset + 12 * a_sample))
    assert step.a_sample == pytest.approx(a_sample)
    batch = step.batch(ratio, communication)
    assert batch >= 1
    if batch > 1:
        assert abs(step.offset + batch * step.a_sample - communication / ratio) <= 0.51 * step.a_sample


def test_a_larger_batch_that_is_faster_gives_no_negative_time() -> None:
    step = StepTime.fit((4, 0.5), (12, 0.4))
    assert step.a_sample > 0
    assert 0 <= step.offset <= 0.5


@pytest.mark.parametrize(
    ("most", "found"), [(1, (1,)), (2, (1, 2)), (3, (1, 2)), (4, (1, 2, 4)), (9, (1, 2, 4, 8))]
)
def test_nodes_are_powers_of_two(most: int, found: tuple[int, ...]) -> None:
    assert powers_of_two(most) == found
