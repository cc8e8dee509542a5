"""The random initialiser: spread, reproducible, and leaving alone what must stay."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sglang_gemma4.tiny import spread_weights  # noqa: E402


class Small(torch.nn.Module):  # type: ignore[name-defined,misc]
    def __init__(self, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(256, 512, bias=False, dtype=dtype)
        self.input_layernorm = torch.nn.RMSNorm(256, dtype=dtype)
        self.q_norm = torch.nn.RMSNorm(16, dtype=dtype)
        self.experts = torch.nn.Parameter(torch.empty(4, 64, 256, dtype=dtype))
        self.register_buffer("layer_scalar", torch.zeros(1, dtype=dtype))
        self.register_buffer("token_ordering", torch.zeros(128, dtype=torch.long))
        self.register_buffer("input_max", torch.tensor(float("inf")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_spread(dtype: Any) -> None:
    model = Small(dtype)
    spread_weights.fill(model, 1)
    for weight in (model.proj.weight, model.experts):
        assert weight.float().std().item() == pytest.approx(1 / 16, rel=0.05)
        assert abs(weight.float().mean().item()) < 0.005
    assert (model.input_layernorm.weight == 1).all()
    assert model.layer_scalar.item() == 1
    assert torch.allclose(model.q_norm.weight.float(), torch.tensor(0.5))
    assert sorted(model.token_ordering.tolist()) == list(range(128))
    assert model.token_ordering.tolist() != list(range(128))
    assert torch.isinf(model.input_max)


def test_seeds() -> None:
    a, b, c = Small(), Small(), Small()
    for model, seed in ((a, 1), (b, 1), (c, 2)):
        spread_weights.fill(model, seed)
    assert torch.equal(a.proj.weight, b.proj.weight)
    assert not torch.equal(a.proj.weight, c.proj.weight)
