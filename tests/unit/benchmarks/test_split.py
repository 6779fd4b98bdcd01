"""The distribution of a step's time over classes, and the numbers of steps."""

import pytest

from benchmarks import pace, split
from benchmarks.split import ProfiledEvent


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::addmm", "products"),
        ("aten::mm", "products"),
        ("aten::bmm", "products"),
        ("aten::linear", "products"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "products"),
        ("mkldnn::_linear_pointwise", "products"),
        ("aten::bernoulli_", "random"),
        ("aten::native_dropout", "random"),
        ("aten::uniform_", "random"),
        ("aten::normal_", "random"),
        ("aten::native_layer_norm", "memory"),
        ("aten::native_layer_norm_backward", "memory"),
        ("aten::copy_", "memory"),
        ("aten::_to_copy", "memory"),
        ("aten::mul", "memory"),
        ("aten::add_", "memory"),
        ("aten::sum", "memory"),
        ("aten::addcmul_", "memory"),
        ("aten::gelu", "memory"),
        ("aten::_softmax", "memory"),
        ("aten::embedding_dense_backward", "memory"),
        ("aten::expand", "memory"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::_foreach_norm", "optimizer"),
        ("aten::linalg_vector_norm", "optimizer"),
        ("gloo:all_reduce", "communication"),
        ("ccl:all_reduce", "communication"),
        ("c10d::allreduce_", "communication"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "other"),
        ("aten::dropout", "random"),
        ("DropoutBackward", "random"),
        ("AttentionBackward", "memory"),
        ("NormedSumBackward", "memory"),
        ("Rotation", "memory"),
        ("FusedAttention", "products"),
        ("FusedAttentionBackward", "products"),
        ("AddmmBackward0", "other"),
        ("DistributedDataParallel.forward", "other"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "other"),
    ],
)
def test_the_name_of_an_operator_determines_its_class(name: str, expected: str) -> None:
    assert split.class_of(name) == expected


def shares(events: list[ProfiledEvent], start: float = 0, end: float = 100) -> dict[str, float]:
    found = split.split(events, start, end)
    assert tuple(found) == split.CLASSES
    assert sum(found.values()) == pytest.approx(1)
    return {name: round(share, 6) for name, share in found.items() if share}


def test_time_belongs_to_the_innermost_operator() -> None:
    events = [
        ProfiledEvent("autograd::engine::evaluate_function: AddmmBackward0", 0, 50, 1),
        ProfiledEvent("aten::mm", 10, 40, 1),
        ProfiledEvent("aten::copy_", 20, 25, 1),
        ProfiledEvent("aten::mul", 60, 80, 1),
    ]
    assert shares(events) == {"products": 0.25, "memory": 0.25, "other": 0.5}
    assert shares(events[::-1]) == shares(events)


def test_operators_inside_optimizer_and_dropout_have_the_outer_class() -> None:
    events = [
        ProfiledEvent("Optimizer.step#AdamW.step", 0, 40, 1),
        ProfiledEvent("aten::mul_", 10, 20, 1),
        ProfiledEvent("aten::dropout", 40, 60, 1),
        ProfiledEvent("aten::div_", 45, 50, 1),
        ProfiledEvent("aten::mul_", 60, 70, 1),
    ]
    assert shares(events) == {"optimizer": 0.4, "random": 0.2, "memory": 0.1, "other": 0.3}


def test_a_collective_on_another_thread_counts_while_this_thread_is_idle() -> None:
    events = [
        ProfiledEvent("autograd::engine::evaluate_function: MulBackward0", 0, 90, 1),
        ProfiledEvent("aten::mm", 0, 50, 1),
        ProfiledEvent("gloo:all_reduce", 40, 70, 2, is_async=True),
        ProfiledEvent("gloo:all_reduce", 60, 80, 3, is_async=True),
        ProfiledEvent("aten::mul", 65, 75, 1),
        ProfiledEvent("other_library", 0, 100, 4, is_async=True),
    ]
    assert shares(events) == {"products": 0.5, "memory": 0.1, "communication": 0.2, "other": 0.2}


def test_a_collective_on_the_computing_thread_counts_completely() -> None:
    assert shares([ProfiledEvent("aten::mm", 0, 60, 1), ProfiledEvent("ccl:all_reduce", 60, 90, 1)]) == {
        "products": 0.6,
        "communication": 0.3,
        "other": 0.1,
    }


def test_only_the_busiest_thread_and_the_given_time_count() -> None:
    events = [
        ProfiledEvent("aten::mm", -50, 50, 1),
        ProfiledEvent("aten::mul", 90, 150, 1),
        ProfiledEvent("aten::copy_", 0, 30, 2),
    ]
    assert shares(events) == {"products": 0.5, "memory": 0.1, "other": 0.4}
    assert shares([]) == {"other": 1.0}


def test_warm_up_takes_a_part_of_the_time_and_two_steps_at_least() -> None:
    assert pace.warm_up(60.0, 15.0) == pace.FEWEST_WARM_UP
    assert pace.warm_up(2.0, 15.0) == 3
    assert pace.warm_up(0.01, 15.0) == pace.MOST_WARM_UP


def test_measured_steps_fit_the_time_unless_their_number_is_given() -> None:
    assert pace.measured(1.5, 15.0, 0) == 10
    assert pace.measured(60.0, 15.0, 0) == pace.FEWEST_STEPS
    assert pace.measured(0.001, 15.0, 0) == pace.MOST_STEPS
    assert pace.measured(60.0, 15.0, 7) == 7


def test_steps_are_added_if_the_first_estimate_was_too_low() -> None:
    assert pace.more(0.5, 2, 15.0, fixed=False) == 58
    assert pace.more(13.0, 10, 15.0, fixed=False) == 0
    assert pace.more(0.5, 2, 15.0, fixed=True) == 0
    assert pace.more(0.001, 400, 15.0, fixed=False) == pace.MOST_STEPS - 400
    assert pace.more(11.9, 2, 15.0, fixed=False) == 1


def test_few_steps_are_profiled() -> None:
    assert (pace.profiled(60.0), pace.profiled(1.0), pace.profiled(0.01)) == (1, 3, pace.MOST_PROFILED)
