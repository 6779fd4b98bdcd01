"""Adaptations for accelerate, and for the bindings that it imports. Without torch and accelerate."""

from __future__ import annotations

import os
import sys
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from cpu_train_stack import catalogue
from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.compat import cpu, old_arguments, process_group


@pytest.mark.parametrize("name", ["PartialState", "AcceleratorState"])
def test_a_rank_of_accelerate_uses_the_cpu_also_in_releases_of_2022(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    seen: list[Any] = []

    class State:
        _shared_state: ClassVar[dict[str, Any]] = {}

        def __init__(self, cpu: bool = False, **options: Any) -> None:
            seen.append((cpu, options))

    monkeypatch.setattr(cpu, "_has_gpu", lambda: False)
    module = ModuleType("accelerate.state")
    setattr(module, name, State)
    cpu.imply_accelerator_cpu(Situation((), {}, "gloo"), module)
    for given in ((), (False,), (True,)):
        State(*given, kind="any")
    State(cpu=False)
    assert seen == [(True, {"kind": "any"})] * 3 + [(True, {})]


def replaced() -> None: ...


def test_accelerate_destroys_no_group_but_the_scripts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older scripts call Accelerator.end_training before they save the model."""
    destroyed: list[object] = []
    state = type("PartialState", (), {"destroy_process_group": lambda _self, group=None: destroyed.append(group)})
    groups = SimpleNamespace(init_process_group=replaced, is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch.distributed", groups)
    monkeypatch.setitem(sys.modules, "accelerate.state", SimpleNamespace(PartialState=state))
    (adaptation,) = (one for one in catalogue.ALL if one.name == "process-group")
    adaptation.install(Situation((), {"torch": "2.13.0"}, "gloo"))
    created: Any = state()
    created.destroy_process_group()
    created.destroy_process_group("own")
    assert destroyed == ["own"]


def test_scripts_compare_with_the_old_name_of_xla() -> None:
    create: Any = Enum
    for names in (("NO", "XLA"), ("NO", "TPU")):
        kinds = create("DistributedType", [(name, name) for name in names])
        old_arguments.add_tpu(Situation((), {}, "gloo"), SimpleNamespace(DistributedType=kinds))
        assert kinds.TPU.value == names[1]
        assert kinds.TPU != kinds.NO
        assert [kind.name for kind in kinds] == list(names)


def test_a_notebook_launcher_calls_its_function_in_the_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "ACCELERATE_MIXED_PRECISION"
    forked: list[Any] = []
    called: list[Any] = []

    def of_2022(
        function: Any,
        args: Any = (),
        num_processes: Any = None,
        use_fp16: bool = False,
        mixed_precision: str = "no",
    ) -> None:
        forked.append((args, num_processes, use_fp16, mixed_precision))

    single, two = SimpleNamespace(notebook_launcher=of_2022), SimpleNamespace(notebook_launcher=of_2022)
    process_group.call_in_ranks(Situation((), {}, "ccl"), single)
    single.notebook_launcher(called.append, (1,), mixed_precision="bf16")
    assert (forked, called) == ([((1,), None, False, "bf16")], [])
    with pytest.raises(UsageError, match="start it with launch --nproc-per-node 4 -- run"):
        single.notebook_launcher(called.append, (1,), num_processes=4)
    process_group.call_in_ranks(Situation((), {}, "ccl", 0, 2).named("notebook-launcher"), two)
    monkeypatch.delenv(name, raising=False)
    two.notebook_launcher(lambda row: called.append((row, os.environ[name])), ("row",), 4, False, "bf16")
    assert name not in os.environ
    monkeypatch.setenv(name, "fp8")
    two.notebook_launcher(lambda row: called.append((row, os.environ[name])), ("other",))
    assert os.environ[name] == "fp8"
    assert (len(forked), called) == (1, [("row", "bf16"), ("other", "no")])
    line = "notebook_launcher starts no processes: each of the 2 ranks calls its function"
    assert capsys.readouterr().err == f"adapted (notebook-launcher): {line}\n"
