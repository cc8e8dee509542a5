"""Dense products of Gemma 4's layers through the kernel for few rows: linear layers, and the FFN with its activation in the product.

A linear layer keeps its class, its weight and its shard; only its ``quant_method``, which multiplies, is replaced.
"""

from typing import Any

import torch
from sglang.srt.layers.activation import GeluAndMul
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

from sglang_gemma4 import patching
from sglang_gemma4.kernels.card import reason_against_card
from sglang_gemma4.kernels.dense.few_row_linear import counters, few_row_linear, reason_against
from sglang_gemma4.models import derived

MOST_ROWS = 16
"""Rows up to which our kernel multiplies: a verify step of 4 requests with 4 draft tokens. At 32 rows the wide products would gain 0 to 1.9
of a layer's 453 µs (``runs/2026-11-23-26b-layer-chain``)."""
MOST_ROWS_OF_LAST_BESIDE_EXPERTS = 1
"""Rows of the dense FFN's second product beside experts: a layer takes 80 µs, not 83, at one row, but 142, not 139, at 4 (same run),
perhaps because its programs occupy the card while experts wait."""
MOST_ROWS_OF_NARROW, NARROW = 32, 512
"""Rows of a product with so few outputs, a router's or a per-layer gate's: 4.2 µs at 32 rows on an H200, SGLang's 6.2, which adds up parts
in a second launch (``runs/2026-11-22-prefill-expert-times``). Also of the dense FFN's first product beside experts, which includes the
activation: 2.4 of a layer's 395 µs at 32 rows (``runs/2026-11-23-26b-layer-chain``)."""


class FewRowLinear(UnquantizedLinearMethod):
    """The ``quant_method`` of a linear layer; ``beside_experts``: "first" or "last" product of a dense FFN beside experts, or None."""

    def __init__(self, layer: Any, beside_experts: str | None = None) -> None:
        super().__init__()
        outputs = layer.weight.shape[0]
        self.done = derived.scratch(layer, "few_row_linear_done", counters(outputs, layer.weight.device))
        self.most_rows = MOST_ROWS_OF_NARROW if outputs <= NARROW or beside_experts == "first" else MOST_ROWS
        if beside_experts == "last":
            self.most_rows = MOST_ROWS_OF_LAST_BESIDE_EXPERTS

    def takes(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether the kernel multiplies these; the weight may be some rows of the layer's."""
        taken = 0 < x.shape[0] <= self.most_rows and x.dim() == 2 and x.stride(1) == 1 and reason_against(x, weight) is None
        return taken and patching.takes("few_row_linear", None)

    def product(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x @ weight.T + bias`` for ``x`` ``[rows, width]``."""
        if bias is None and self.takes(x, weight):
            return few_row_linear(x, weight, self.done)
        return torch.nn.functional.linear(x, weight, bias)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """What ``UnquantizedLinearMethod.apply`` returns."""
        weight: Any = layer.weight
        if bias is None and self.takes(x, weight):
            return few_row_linear(x, weight, self.done)
        out: torch.Tensor = super().apply(layer, x, bias)  # which may be another backend's than torch's
        return out


class GatedFeedForward:
    """Replaces ``forward`` of a ``Gemma3MLP``: for few rows, gate, up and activation are one launch."""

    def __init__(self, feed_forward: Any, method: FewRowLinear) -> None:
        self.feed_forward, self.method, self.stock = feed_forward, method, feed_forward.forward
        self.gate_up = feed_forward.gate_up_proj
        feed_forward.forward = self

    def problem(self) -> str | None:
        """Why gate and up are more than a product with their weight by now, or None; our launch would leave out the rest."""
        gate_up = self.feed_forward.gate_up_proj
        if gate_up is not self.gate_up:
            return f"gate_up_proj became a {type(gate_up).__name__}: SGLang's activation follows its product"
        if gate_up.quant_method is not self.method:
            return f"gate_up_proj is multiplied by a {type(gate_up.quant_method).__name__} by now"
        return None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """What the FFN returns."""
        problem, weight = self.problem(), self.gate_up.weight
        if problem is not None:
            patching.takes("few_row_linear", problem)
        if problem is not None or not self.method.takes(x, weight):
            out: torch.Tensor = self.stock(x)
            return out
        hidden = few_row_linear(x, weight, self.method.done, gated=True)
        return self.feed_forward.down_proj(hidden)[0]  # type: ignore[no-any-return]


def linear_problem(layer: LinearBase) -> str | None:
    """Why a linear layer keeps its own product, or None."""
    if type(layer.quant_method) is not UnquantizedLinearMethod:
        return f"it is quantised ({type(layer.quant_method).__name__})"
    if layer.bias is not None:
        return "it has a bias"
    # Ask for a weight by rows: one still to be mapped (tiny/shared_weights.py) has no strides yet, and each call checks the real one.
    weight = torch.empty_like(layer.weight, device="meta", memory_format=torch.contiguous_format)
    return reason_against(weight[:1], weight) or reason_against_card(layer.weight.device)


def install(model: Any, overlap: bool = False) -> list[str]:
    """Replace the method of every linear layer in a ``Gemma4TextModel`` or a similar module.

    Args:
        overlap: a MoE layer's dense FFN runs beside its router and experts (``dense_beside_experts.py``), for which other limits of
            rows were measured.

    Returns:
        One line for each reason why layers stay as they are.
    """
    ffns = [layer.mlp for layer in model.modules() if overlap and getattr(layer, "enable_moe_block", False)]
    beside_experts = {id(ffn.gate_up_proj): "first" for ffn in ffns} | {id(ffn.down_proj): "last" for ffn in ffns}
    kept: dict[str, str] = {}
    methods: dict[int, FewRowLinear] = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, LinearBase) or isinstance(layer.quant_method, FewRowLinear):
            continue
        problem = linear_problem(layer)
        if problem is not None:
            kept.setdefault(problem, name)
            continue
        methods[id(layer)] = FewRowLinear(layer, beside_experts.get(id(layer)))
        layer.quant_method = methods[id(layer)]
    for layer in model.modules():
        gate_up = getattr(layer, "gate_up_proj", None)
        if id(gate_up) in methods and type(getattr(layer, "act_fn", None)) is GeluAndMul and layer.act_fn.approximate == "tanh":
            GatedFeedForward(layer, methods[id(gate_up)])
    return [f"{name}: {problem}" for problem, name in kept.items()]
