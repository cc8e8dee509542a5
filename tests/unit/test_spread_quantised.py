"""Random quantised weights: dequantised they have the spread of unquantised ones, and no mean."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sglang_gemma4.tiny import spread_quantised, spread_weights  # noqa: E402


def unpacked(packed: Any, dim: int) -> Any:
    """The levels of int32 words, 8 along ``dim``."""
    parts = torch.stack([(packed >> (4 * place)) & 15 for place in range(8)], dim=dim + 1)
    shape = list(packed.shape)
    shape[dim] *= 8
    return (parts.reshape(shape) - 8).float()


def dequantised(parts: dict[str, Any]) -> Any:
    """Weights of a product, inputs last; each format as its own documentation says."""
    if "weight" in parts:
        scale = next(parts[name] for name in ("weight_scale", "weight_scale_inv") if name in parts)
        scale = scale if scale.dim() == 2 else scale.reshape(-1, 1)
        repeats = [-(-size // part) for size, part in zip(parts["weight"].shape, scale.shape, strict=True)]
        wide = scale.repeat_interleave(repeats[0], 0).repeat_interleave(repeats[1], 1)
        return parts["weight"].float() * wide[: parts["weight"].shape[0], : parts["weight"].shape[1]]
    if "w13_weight_packed" in parts:
        levels = unpacked(parts["w13_weight_packed"], 1)
        return (levels * parts["w13_weight_scale"].float().repeat_interleave(32, 1)).transpose(1, 2)
    if "weight_packed" in parts:
        levels = unpacked(parts["weight_packed"], 1)
        return levels * parts["weight_scale"].float().repeat_interleave(levels.shape[1] // parts["weight_scale"].shape[1], 1)
    gptq = parts["qweight"].shape[1] == parts["scales"].shape[1]
    levels = unpacked(parts["qweight"], 0 if gptq else 1)
    zeros = unpacked(parts["qzeros"], 1)
    assert (zeros == (-1 if gptq else 0)).all(), "GPTQ keeps a zero point less one"
    return (levels * parts["scales"].float().repeat_interleave(levels.shape[0] // parts["scales"].shape[0], 0)).t()


FORMATS: dict[str, dict[str, Any]] = {
    "fp8 by channel": {"weight": torch.empty(384, 512, dtype=torch.float8_e4m3fn), "weight_scale": torch.empty(384, 1)},
    "fp8 by tensor": {
        "weight": torch.empty(384, 512, dtype=torch.float8_e4m3fn),
        "weight_scale": torch.empty(3),
        "input_scale": torch.empty(3),
    },
    "fp8 by block": {"weight": torch.empty(384, 500, dtype=torch.float8_e4m3fn), "weight_scale_inv": torch.empty(3, 4)},
    "int4 in groups of 32": {
        "weight_packed": torch.empty(384, 64, dtype=torch.int32),
        "weight_scale": torch.empty(384, 16, dtype=torch.bfloat16),
        "weight_shape": torch.zeros(2, dtype=torch.int64),
    },
    "int4 experts": {
        "w13_weight_packed": torch.empty(4, 64, 192, dtype=torch.int32),
        "w13_weight_scale": torch.empty(4, 16, 192, dtype=torch.bfloat16),
        "w13_g_idx_sort_indices": torch.zeros(4, 512, dtype=torch.int32),
    },
    "gptq": {
        "qweight": torch.empty(64, 384, dtype=torch.int32),
        "scales": torch.empty(4, 384, dtype=torch.bfloat16),
        "qzeros": torch.empty(4, 48, dtype=torch.int32),
    },
    "awq": {
        "qweight": torch.empty(512, 48, dtype=torch.int32),
        "scales": torch.empty(4, 384, dtype=torch.bfloat16),
        "qzeros": torch.empty(4, 48, dtype=torch.int32),
    },
}


class Holder(torch.nn.Module):  # type: ignore[name-defined,misc]
    def __init__(self, parts: dict[str, Any]) -> None:
        super().__init__()
        for name, tensor in parts.items():
            self.register_buffer(name, tensor.clone())


@pytest.mark.parametrize("kind", FORMATS)
def test_dequantised_spread(kind: str) -> None:
    layer = Holder(FORMATS[kind])
    model = torch.nn.ModuleDict({"proj": layer})
    spread_weights.fill(model, 1)
    parts = dict(layer.named_buffers())
    weights = dequantised(parts)
    assert weights.shape[-1] in (500, 512)
    assert weights.std().item() == pytest.approx(weights.shape[-1] ** -0.5, rel=0.03)
    assert abs(weights.mean().item()) < 0.01 * weights.std().item(), "a mean would grow from layer to layer"
    assert weights.unique().numel() > 200
    scales = next(tensor for name, tensor in parts.items() if name.endswith(("weight_scale", "weight_scale_inv", "scales")))
    assert scales.unique().numel() > 2, "a kernel that takes another row's scale must be found out"
    if "input_scale" in parts:
        assert (parts["input_scale"] == spread_quantised.INPUT_SCALE).all()


def test_levels_are_rounded_as_a_quantiser_does() -> None:
    layer = Holder(FORMATS["int4 experts"])
    spread_weights.fill(torch.nn.ModuleDict({"proj": layer}), 2)
    levels = unpacked(layer.w13_weight_packed, 1)
    assert levels.abs().max() == 7
    assert levels.std().item() == pytest.approx(spread_quantised.INT4_ROUNDED, rel=0.005)


def test_weights_quantised_after_loading_keep_their_spread() -> None:
    """``--quantization fp8`` on a bfloat16 checkpoint: the weight is filled as any, its scale is there already."""
    layer = Holder({"w13_weight": torch.empty(4, 96, 256, dtype=torch.bfloat16), "w13_weight_scale": torch.empty(4, 2)})
    spread_weights.fill(torch.nn.ModuleDict({"experts": layer}), 1)
    assert layer.w13_weight.float().std().item() == pytest.approx(1 / 16, rel=0.02)
    assert (layer.w13_weight_scale == 1).all()


@pytest.mark.parametrize(
    ("form", "shared"), [(None, True), ("fp8-dynamic", True), ("fp8-static", False), ("w4a16-g32", False), ("fp8", False)]
)
def test_weights_that_are_rewritten_are_not_shared(form: str | None, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_gemma4.patching.switches import SHARED_WEIGHTS
    from sglang_gemma4.tiny import quantisation
    from sglang_gemma4.tiny.shared_weights import check_format

    config = quantisation.config(quantisation.FORMATS[form]) if form in quantisation.FORMATS else None
    method = form if config is None else "compressed-tensors"
    check_format(method, config)
    monkeypatch.setenv(SHARED_WEIGHTS, "1000:/somewhere")
    if shared:
        check_format(method, config)
    else:
        with pytest.raises(ValueError, match="--share-weights: SGLang rewrites weights of"):
            check_format(method, config)
