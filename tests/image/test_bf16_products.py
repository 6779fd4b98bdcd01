"""Products of bf16 matrices on a CPU without bf16 instructions."""

from pathlib import Path

import pytest

from tests.containers import RunInImage

# oneDNN is kept from the instructions, so that every machine is one without them. Layers, their gradients and
# attention against float32 on the same operands, rounded once.
PRODUCTS = """
import torch, torch.nn.functional as F
from cpu_train_stack.operators import bf16_products
BF = torch.bfloat16
print("widened" if bf16_products._libraries else "torch's own")
torch.manual_seed(0)
a, b, bias = torch.randn(33, 64).to(BF), torch.randn(64, 17).to(BF), torch.randn(17).to(BF)
wide = a.float() @ b.float()
assert torch.equal(a @ b, wide.to(BF))
assert torch.equal(torch.addmm(bias, a, b, beta=2, alpha=3), (2 * bias.float() + 3 * wide).to(BF))
many = torch.randn(5, 8, 64).to(BF), torch.randn(5, 64, 9).to(BF)
assert torch.equal(torch.bmm(*many), (many[0].float() @ many[1].float()).to(BF))
assert torch.equal(torch.mm(a.float(), b.float()), wide)
assert torch.mm(a.double(), b.double()).dtype is torch.float64
weight = torch.randn(64, 17, requires_grad=True)
with torch.autocast("cpu", BF):
    (a.float() @ weight).float().square().sum().backward()
product = (a.float() @ weight.detach().to(BF).float()).to(BF)
expected = (a.float().t() @ (2 * product.float()).to(BF).float()).to(BF).float()
assert torch.equal(weight.grad, expected)
q, k, v = (torch.randn(2, 4, 16, 8, requires_grad=True) for _ in range(3))
mask = torch.zeros(2, 1, 16, 16).masked_fill(torch.rand(2, 1, 16, 16) < 0.3, -1e9)
for options in ({"attn_mask": mask}, {"is_causal": True}, {"attn_mask": mask.to(BF)}):
    with torch.autocast("cpu", BF):
        found = F.scaled_dot_product_attention(q, k, v, **options)
    assert found.dtype is BF
    options = {name: value.float() if value is not True else value for name, value in options.items()}
    reference = F.scaled_dot_product_attention(*(x.to(BF).float() for x in (q, k, v)), **options)
    assert torch.equal(found, reference.to(BF))
    found.float().sum().backward()
assert all(x.grad.isfinite().all() and x.grad.abs().sum() > 0 for x in (q, v))
assert F.scaled_dot_product_attention(q, k, v).dtype is torch.float32
for product in (
    lambda: torch.mm(a, b.float()),
    lambda: F.linear(a, b.t().float()),
    lambda: torch.addmm(bias, a.float(), b.float()),
    lambda: torch.addmm(bias, a, b.float()),
    lambda: torch.bmm(many[0], many[1].float()),
    lambda: torch.baddbmm(many[0][..., :9], many[0], many[1].float()),
    lambda: torch.mm(a, b.long()),
):
    try:
        product()
    except RuntimeError as error:
        assert "type" in str(error), error
    else:
        raise AssertionError("operands of different dtypes were accepted")
with torch.device("meta"):
    assert torch.equal(a @ b, wide.to(BF)) and torch.equal(a.float() @ b.float(), wide)
layer = torch.nn.TransformerEncoderLayer(16, 2, dropout=0.0, batch_first=True)
states = torch.randn(2, 5, 16)
torch.testing.assert_close(torch.jit.script(layer)(states), layer(states))
print("right")
"""


@pytest.fixture
def products(script: Path) -> Path:
    script.write_text(PRODUCTS)
    return script


def test_products_are_made_in_fp32_and_rounded_once(run_in_image: RunInImage, products: Path) -> None:
    done = run_in_image(
        *("run", "/s/script.py"),
        env={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
        docker_args=("--volume", f"{products.parent}:/s:ro"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["widened", "right"]
