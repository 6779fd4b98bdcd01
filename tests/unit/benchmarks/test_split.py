"""The distribution of a step's time over classes, and the numbers of steps."""

import pytest

from benchmarks import pace, split
from benchmarks.split import ProfiledEvent

CLASS_OF = {
    "products": (
        "aten::addmm", "aten::mm", "aten::bmm", "aten::linear",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward", "mkldnn::_linear_pointwise",
        "FusedAttention", "FusedAttentionBackward",
    ),
    "random": (
        "aten::bernoulli_", "aten::native_dropout", "aten::uniform_", "aten::normal_", "aten::dropout",
        "DropoutBackward",
    ),
    "memory": (
        "aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::copy_", "aten::_to_copy",
        "aten::mul", "aten::add_", "aten::sum", "aten::addcmul_", "aten::gelu", "aten::_softmax",
        "aten::embedding_dense_backward", "aten::expand", "AttentionBackward", "NormedSumBackward",
        "Rotation",
    ),
    "optimizer": (
        "Optimizer.step#AdamW.step", "aten::_fused_adamw_", "aten::_foreach_norm", "aten::linalg_vector_norm",
    ),
    "communication": ("gloo:all_reduce", "ccl:all_reduce", "c10d::allreduce_"),
    "other": (
        "autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0",
        "DistributedDataParallel.forward", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"), [(name, expected) for expected, names in CLASS_OF.items() for name in names]
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
