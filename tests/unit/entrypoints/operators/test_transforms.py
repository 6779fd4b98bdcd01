"""What is left to torch, with stand-ins for its releases."""

import sys
from types import SimpleNamespace

import pytest

from cpu_train_stack.operators import transforms


def test_a_torch_that_does_not_tell_whether_it_exports_records_its_own_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before 2.7, a strict export looks like torch.compile."""
    compiler = SimpleNamespace(is_compiling=lambda: True, is_dynamo_compiling=lambda: True)
    library = SimpleNamespace(register_autograd=None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(compiler=compiler, library=library))
    assert not transforms.can_trace()
    assert transforms.is_left_to_torch()
    for exports in (False, True):
        compiler.is_exporting = lambda exports=exports: exports
        assert transforms.can_trace()
        assert transforms.is_left_to_torch() is exports
