"""The model of a data-parallel job's time: properties that hold for any job."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tooling.bench.forecast import step
from tooling.bench.forecast.estimate import Estimate, propagate
from tooling.bench.forecast.inputs import LATENCY_SECONDS, OVERLAP, Link, all_reduce_seconds, parse_network
from tooling.bench.forecast.step import ForecastJob, Inputs, fit

MB = 10**6
RANKS = st.integers(2, 512)
SIZES = st.floats(1, 1e10)
LINKS = st.builds(Link, st.floats(1e6, 1e12), st.floats(1e-7, 1e-2))
JOBS = st.builds(
    lambda share, **fields: ForecastJob(**fields, last_bytes=int(share * fields["gradient_bytes"])),
    share=st.floats(0, 1),
    samples=st.integers(1000, 10**6),
    epochs=st.integers(1, 5),
    batch_size=st.integers(1, 64),
    gradient_bytes=st.integers(4000, 4 * 10**9),
    ranks_per_node=st.integers(1, 4),
)


LINK = Link(2.5e9)


def inputs(link: Link = LINK, speed: float = 25.0, **changes: Estimate) -> Inputs:
    return replace(
        Inputs(
            samples_per_second=Estimate.exact(speed),
            bytes_per_second=Estimate.exact(link.bytes_per_second),
            latency_seconds=Estimate.exact(link.latency_seconds),
            overlap=OVERLAP,
        ),
        **changes,
    )


BERT = ForecastJob(samples=400_000, epochs=3, batch_size=32, gradient_bytes=438 * MB, last_bytes=94 * MB)


@given(size=SIZES, ranks=RANKS, link=LINKS)
def test_an_all_reduce_is_never_faster_than_its_lower_bounds(size: float, ranks: int, link: Link) -> None:
    found = all_reduce_seconds(size, ranks, link)
    assert found >= 2 * (ranks - 1) / ranks * size / link.bytes_per_second * (1 - 1e-9)
    assert found >= math.log2(ranks) * link.latency_seconds
    assert found <= all_reduce_seconds(2 * size, ranks, link) <= 2 * found * (1 + 1e-9)
    assert found <= all_reduce_seconds(size, 2 * ranks, link)


def test_a_large_all_reduce_is_a_ring_and_a_small_one_doubles() -> None:
    link = Link(1e9, 1e-4)
    assert all_reduce_seconds(800 * MB, 8, link) == pytest.approx(14 * (1e-4 + 0.1))
    assert all_reduce_seconds(1000, 8, link) == pytest.approx(3 * (1e-4 + 1e-6))
    assert all_reduce_seconds(800 * MB, 1, link) == 0


@given(job=JOBS, nodes=RANKS, link=LINKS, speed=st.floats(0.1, 1000))
def test_a_step_takes_between_computing_alone_and_computing_plus_communicating(
    job: ForecastJob, nodes: int, link: Link, speed: float
) -> None:
    known = inputs(link, speed, jitter=Estimate.exact(0), overlap=Estimate.exact(1))
    one = step.predict(job, nodes, known).step
    assert one.computing == pytest.approx(job.batch_size * job.ranks_per_node / speed)
    assert 0 <= one.exposed <= one.communication * (1 + 1e-9)
    without = replace(known, overlap=Estimate.exact(0))
    assert step.predict(job, nodes, without).step.exposed == pytest.approx(one.communication)


@given(job=JOBS, nodes=st.integers(1, 64), link=LINKS)
def test_efficiency_is_at_most_1_and_a_faster_network_is_never_slower(
    job: ForecastJob, nodes: int, link: Link
) -> None:
    slow = step.predict(job, nodes, inputs(link))
    fast = step.predict(job, nodes, inputs(Link(2 * link.bytes_per_second, link.latency_seconds / 2)))
    assert fast.seconds.value <= slow.seconds.value * (1 + 1e-9)
    # The last batch of one node may be nearly empty. It counts as a full batch.
    assert slow.efficiency.value <= (1 + 1e-9) * (1 + job.epochs / job.steps(1))
    assert slow.seconds.low <= slow.seconds.value <= slow.seconds.high


def test_without_communication_and_waiting_nodes_divide_the_time() -> None:
    job = ForecastJob(samples=32 * 64, epochs=2, batch_size=32, gradient_bytes=4, last_bytes=0)
    known = inputs(Link(1e15, 0), jitter=Estimate.exact(0))
    for nodes in (1, 2, 4, 8):
        found = step.predict(job, nodes, known)
        assert found.efficiency.value == pytest.approx(1)
        assert found.seconds.value == pytest.approx(2 * 32 * 64 / 25 / nodes)


def test_the_fixed_part_limits_the_speed_up() -> None:
    """Amdahl's law: a fixed tenth, and nine tenths over four nodes."""
    job = ForecastJob(samples=32 * 64, epochs=1, batch_size=32, gradient_bytes=4, last_bytes=0)
    alone = 32 * 64 / 25
    known = inputs(Link(1e15, 0), jitter=Estimate.exact(0), fixed_seconds=Estimate.exact(alone / 9))
    assert step.predict(job, 4, known).speedup.value == pytest.approx(1 / (0.1 + 0.9 / 4))


def test_only_the_last_bucket_is_exposed_if_backward_is_long_enough() -> None:
    link = Link(2.5e9, 0)
    known = inputs(link, jitter=Estimate.exact(0), overlap=Estimate.exact(1))
    one = step.predict(BERT, 4, known).step
    last, body_bucket = 1.5 * 94 * MB / 2.5e9, 1.5 * (344 / 14) * MB / 2.5e9
    assert one.exposed == pytest.approx(last + body_bucket)
    # on a network slower than backward, all communication after backward is exposed
    slow = step.predict(BERT, 4, inputs(Link(0.25e9, 0), jitter=Estimate.exact(0))).step
    first_ready = one.computing * 2 / 3 / 14
    assert slow.exposed == pytest.approx(1.5 * 438 * MB / 0.25e9 - one.computing * 2 / 3 + first_ready)


def test_the_slowest_of_more_nodes_is_slower() -> None:
    found = [step.slowest(nodes) for nodes in (1, 2, 4, 8)]
    assert found == pytest.approx([0, 0.5642, 1.0294, 1.4236], abs=0.03)  # tables of order statistics


def test_reserved_cores_do_not_compute_on_two_nodes_and_more() -> None:
    known = inputs(compute_share=Estimate.exact(28 / 32))
    assert step.predict(BERT, 1, known).step.computing == pytest.approx(32 / 25)
    assert step.predict(BERT, 2, known).step.computing == pytest.approx(32 / 25 * 32 / 28)


def test_error_bars_add_up_as_squares_separately_for_each_direction() -> None:
    some = {"a": Estimate(10, 7, 13), "b": Estimate(5, 5, 9), "c": Estimate.exact(1)}
    found = propagate(lambda values: values["a"] + values["b"] + values["c"], some)
    assert (found.value, found.low, found.high) == (16, 13, 21)
    with pytest.raises(ValueError, match="3 is not between 1 and 2"):
        Estimate(3, 1, 2)


def test_the_speed_of_a_node_widens_the_times_but_not_the_efficiency() -> None:
    sure = step.predict(BERT, 4, inputs())
    unsure = step.predict(BERT, 4, inputs(samples_per_second=Estimate.within(25, 0.1)))

    def width(estimate: Estimate) -> float:
        return (estimate.high - estimate.low) / estimate.value

    assert width(unsure.seconds) > 0.15
    assert width(unsure.efficiency) < width(sure.efficiency) + 0.02


def cost_of(fitted: Inputs) -> float:
    """The fitted cost, as a factor of the expected cost."""
    expected = step.predict(BERT, 2, inputs()).step
    return fitted.seen_cost.value / (expected.waiting + expected.exposed)


@pytest.mark.parametrize("cost", [0.3, 1.0, 2.5])
def test_an_exact_measurement_on_two_nodes_corrects_the_prediction_for_four(cost: float) -> None:
    true = inputs(cost=Estimate.exact(cost))
    on_two = step.predict(BERT, 2, true).seconds.value
    fitted = fit(BERT, 2, Estimate.exact(on_two), inputs())
    assert cost_of(fitted) == pytest.approx(cost)
    assert step.predict(BERT, 2, fitted).seconds.value == pytest.approx(on_two)
    found = step.predict(BERT, 4, fitted).seconds
    assert found.value == pytest.approx(step.predict(BERT, 4, true).seconds.value)
    # the cost on two nodes is known, its change with more nodes is not
    two = step.predict(BERT, 2, fitted).seconds
    assert two.high - two.low < 1e-6 * on_two < found.high - found.low


def test_a_measurement_with_wider_error_bars_has_less_weight() -> None:
    on_two = step.predict(BERT, 2, inputs(cost=Estimate.exact(3))).seconds.value
    fitted = [fit(BERT, 2, Estimate.within(on_two, spread), inputs()) for spread in (0.001, 0.03, 0.3)]
    costs = [cost_of(one) for one in fitted]
    assert 3 > costs[0] > costs[1] > costs[2] > 0.9
    widths = [one.seen_cost.high - one.seen_cost.low for one in fitted]
    assert widths == sorted(widths)


def test_a_cost_is_never_negative() -> None:
    too_fast = Estimate.exact(step.predict(BERT, 1, inputs()).seconds.value / 2 * 0.9)
    fitted = fit(BERT, 2, too_fast, inputs())
    assert (fitted.seen_cost.low, fitted.seen_cost.value) == (0, 0)
    assert step.predict(BERT, 4, fitted).efficiency.value == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "rate", "latency"),
    [
        ("10g", 1.25e9, LATENCY_SECONDS),
        ("25G", 3.125e9, LATENCY_SECONDS),
        ("2.5gbit/s,15us", 3.125e8, 15e-6),
        ("900m,1ms", 1.125e8, 1e-3),
    ],
)
def test_a_network_is_a_bit_rate_and_a_latency(text: str, rate: float, latency: float) -> None:
    found = parse_network(text)
    assert found.bytes_per_second == pytest.approx(rate)
    assert found.latency_seconds == pytest.approx(latency)
