"""Dense GEMMs of Gemma 4's layers through the small-M kernel: linear layers, and the FFN with its activation fused.

A linear layer keeps its class, its weight and its shard. Only its ``quant_method``, which multiplies, is replaced. The
one of an fp8 layer keeps its class's behaviour for everything else, and for GEMMs that our kernel does not take.
"""

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.activation import GeluAndMul
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsLinearMethod
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

from sglang_gemma4 import patching
from sglang_gemma4.kernels import weights
from sglang_gemma4.kernels.card import reason_against_card
from sglang_gemma4.kernels.dense.few_row_linear import counters, few_row_linear, reason_against
from sglang_gemma4.kernels.weights import Weight
from sglang_gemma4.models import derived
from sglang_gemma4.models.layers import four_bit_layers, weight_formats

MOST_ROWS = 16
"""Most rows that our kernel multiplies: a verify step of 4 requests with 4 draft tokens.

At 32 rows the wide GEMMs would gain at most 1.9 of a layer's 453 µs (``runs/2026-11-23-26b-layer-chain``).
"""
MOST_ROWS_OF_LAST_BESIDE_EXPERTS = 1
"""Most rows of the dense FFN's second GEMM if it runs in parallel with experts.

At one row a layer takes 80 µs instead of 83, but at 4 rows 142 instead of 139 (same run). Perhaps its programs occupy
the GPU while experts wait.
"""
MOST_ROWS_OF_NARROW, NARROW = 32, 512
"""Most rows of a GEMM with few outputs (a router, a per-layer gate) or few inputs (a per-layer embedding).

``NARROW`` is the most that counts as few.
At 32 rows on an H200 it takes 4.2 µs and SGLang's, which adds up parts in a second launch, 6.2
(``runs/2026-11-22-prefill-expert-times``). The limit also holds for an FFN's first GEMM, which includes the
activation. In parallel with experts that gains 2.4 of a layer's 395 µs at 32 rows
(``runs/2026-11-23-26b-layer-chain``), in layers of E2B, E4B and 31B 1.5 to 10 µs (``runs/2026-11-26-dense-layers``).
"""
LARGE_FFN = 8192
"""Fewest outputs of gate and up together for which that holds in an FFN without parallel experts.

The drafts' FFNs are smaller, and were not measured.
"""
MOST_ROWS_OF_FP8 = 16
"""Most rows of an fp8 GEMM. With more rows SGLang's two launches take less time: they round the activation to fp8 first
(``runs/2026-11-30-h200-fp8-linear``)."""
MOST_ROWS_OF_SMALL_FP8, SMALL_FP8 = 32, 20e6
"""The same for a weight of at most ``SMALL_FP8`` elements, where SGLang's first launch counts for more."""
MOST_ROWS_OF_WIDE_FP8, WIDE_FP8 = 8, 4096
"""The same for a weight whose outputs and inputs are both more than ``WIDE_FP8``: 31B's."""


class FewRows:
    """Mixin for a linear layer's ``quant_method`` that uses our kernel; it precedes SGLang's class among the bases."""

    done: torch.Tensor
    most_rows: int

    def start(self, layer: Any, most_rows: int) -> None:
        """Make the counters that this layer's launches share, before its weights are loaded."""
        weight = layer.weight_packed if weight_formats.is_grouped(layer) else layer.weight
        self.done = derived.scratch(layer, "few_row_linear_done", counters(weight.shape[0], weight.device))
        self.most_rows = most_rows

    def takes(self, x: torch.Tensor, weight: Weight) -> bool:
        """Whether the kernel multiplies these; ``weight`` may be some rows of the layer's."""
        taken = 0 < x.shape[0] <= self.most_rows and x.dim() == 2 and x.stride(1) == 1 and reason_against(x, weight) is None
        return taken and patching.takes("few_row_linear", None)

    def weight_for(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> Weight | None:
        """The layer's weight if the kernel multiplies it with ``x``, else None."""
        if bias is not None or not isinstance(x, torch.Tensor) or x.dim() != 2 or not 0 < x.shape[0] <= self.most_rows:
            return None
        weight = weight_formats.linear_weight(layer)
        return weight if self.takes(x, weight) else None

    def gated_outputs(self, layer: Any, x: torch.Tensor) -> torch.Tensor | None:
        """The GEMM with gate and up, and the activation, in one launch; None if the kernel does not take ``x``."""
        weight = self.weight_for(layer, x)
        return None if weight is None else few_row_linear(x, weight, self.done, gated=True)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """What SGLang's ``apply`` returns."""
        weight = self.weight_for(layer, x, bias)
        if weight is not None:
            return few_row_linear(x, weight, self.done)
        out: torch.Tensor = super().apply(layer, x, bias)  # type: ignore[misc]  # may use another backend than torch's
        return out


class FewRowLinear(FewRows, UnquantizedLinearMethod):
    """The ``quant_method`` of an unquantised linear layer; ``most_rows``: a limit set by its place in the model."""

    def __init__(self, layer: Any, most_rows: int | None = None) -> None:
        super().__init__()
        self.start(layer, most_rows or (MOST_ROWS_OF_NARROW if min(layer.weight.shape) <= NARROW else MOST_ROWS))

    def first_outputs(self, layer: Any, x: torch.Tensor, outputs: int, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x @ weight[:outputs].T + bias`` for ``x`` ``[rows, width]``."""
        weight = layer.weight[:outputs]
        if bias is None and self.takes(x, weight):
            return few_row_linear(x, weight, self.done)
        return torch.nn.functional.linear(x, weight, bias)


class FewRowsOfFp8(FewRows):
    """The ``quant_method`` of an fp8 layer."""

    def first_outputs(self, layer: Any, x: torch.Tensor, outputs: int, bias: torch.Tensor | None = None) -> torch.Tensor:
        """As :meth:`FewRowLinear.first_outputs`; SGLang's GEMM takes the other batches, on a view of the weight."""
        weight = self.weight_for(layer, x, bias)
        if isinstance(weight, weights.Scaled):
            return few_row_linear(x, weight.first(outputs), self.done)
        found = weight_formats.linear_weight(layer)
        if isinstance(found, weights.Scaled) and found.block:
            return super(FewRows, self).apply(layer, x, bias)[:, :outputs].contiguous()  # type: ignore[misc, no-any-return]
        scale = layer.weight_scale.data
        if scale.numel() > 1:
            scale = scale[:outputs] if scale.shape[0] > 1 else scale[:, :outputs]
        part = {"weight": layer.weight.data[:, :outputs], "weight_scale": scale, "input_scale": layer.input_scale}
        some: Any = SimpleNamespace(**part, scheme=getattr(layer, "scheme", None))
        out: torch.Tensor = super(FewRows, self).apply(some, x, bias)  # type: ignore[misc]
        return out


class FewRowFp8(FewRowsOfFp8, Fp8LinearMethod):
    """The ``quant_method`` under ``--quantization fp8``, and for a checkpoint in that format."""


class FewRowCompressed(FewRowsOfFp8, CompressedTensorsLinearMethod):
    """The ``quant_method`` for compressed-tensors' FP8."""


class FewRowFourBits(FewRows, CompressedTensorsLinearMethod):
    """The ``quant_method`` for compressed-tensors' 4-bit weights that stay as the checkpoint has them."""

    def first_outputs(self, layer: Any, x: torch.Tensor, outputs: int, bias: torch.Tensor | None = None) -> torch.Tensor:
        """As :meth:`FewRowLinear.first_outputs`; for many rows only that part is dequantised."""
        found: Any = weight_formats.linear_weight(layer)
        part = found.first(outputs)
        if bias is None and self.takes(x, part):
            return few_row_linear(x, part, self.done)
        return four_bit_layers.product(layer.scheme, x, part, bias)


def few_row_method(layer: Any, most_rows: int | None = None) -> FewRows:
    """The method for a linear layer without :func:`reason_against_linear`; it keeps the attributes of SGLang's method.

    Args:
        most_rows: the limit of an unquantised layer, if its place in the model sets one.
    """
    if weight_formats.is_plain(layer):
        return FewRowLinear(layer, most_rows)
    four = weight_formats.is_grouped(layer)
    of_fp8 = FewRowFp8 if isinstance(layer.quant_method, Fp8LinearMethod) else FewRowCompressed
    method: FewRows = object.__new__(FewRowFourBits if four else of_fp8)
    vars(method).update(vars(layer.quant_method))
    method.start(layer, layer.scheme.most_rows if four else fp8_rows(*layer.weight.shape))
    return method


def fp8_rows(outputs: int, width: int) -> int:
    """The most rows of an fp8 GEMM that our kernel multiplies.

    ``outputs`` (of gate and up together) and ``width`` may come in either order.
    """
    if min(outputs, width) > WIDE_FP8:
        return MOST_ROWS_OF_WIDE_FP8
    return MOST_ROWS_OF_SMALL_FP8 if outputs * width <= SMALL_FP8 else MOST_ROWS_OF_FP8


class GatedFeedForward:
    """Replaces ``forward`` of a ``Gemma3MLP``: for few rows, gate, up and activation are one launch."""

    def __init__(self, feed_forward: Any, method: FewRows) -> None:
        self.feed_forward, self.method, self.stock = feed_forward, method, feed_forward.forward
        self.gate_up = feed_forward.gate_up_proj
        feed_forward.forward = self

    def reason_against(self) -> str | None:
        """Why gate and up are no longer a plain GEMM, or None. Our launch would leave out the rest."""
        gate_up = self.feed_forward.gate_up_proj
        if gate_up is not self.gate_up:
            return f"gate_up_proj became a {type(gate_up).__name__}: SGLang's activation follows its GEMM"
        if gate_up.quant_method is not self.method:
            return f"gate_up_proj is multiplied by a {type(gate_up.quant_method).__name__} by now"
        return None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """What the FFN returns."""
        problem = self.reason_against()
        if problem is not None:
            patching.takes("few_row_linear", problem)
        hidden = None if problem is not None else self.method.gated_outputs(self.gate_up, x)
        if hidden is None:
            out: torch.Tensor = self.stock(x)
            return out
        return self.feed_forward.down_proj(hidden)[0]  # type: ignore[no-any-return]


def reason_against_linear(layer: LinearBase) -> str | None:
    """Why a linear layer keeps its own GEMM, or None."""
    if problem := weight_formats.reason_against_linear(layer):
        return problem
    if type(layer.quant_method) not in (UnquantizedLinearMethod, Fp8LinearMethod, CompressedTensorsLinearMethod):
        return f"it is multiplied by a {type(layer.quant_method).__name__}"
    if layer.bias is not None:
        return "it has a bias"
    if weight_formats.is_grouped(layer):
        found: Any = weight_formats.linear_weight(layer)
        x = torch.empty((1, found.shape[1]), dtype=found.scale.dtype, device="meta")
        return reason_against(x, found) or reason_against_card(found.device)
    if not weight_formats.is_plain(layer):  # checked in the form that it will have once it is loaded
        shape = layer.weight.shape
        levels = torch.empty(shape, dtype=weights.FP8, device="meta")
        x = torch.empty((1, shape[1]), dtype=layer.orig_dtype, device="meta")
        loaded = weights.scaled(levels, torch.empty(shape[0], dtype=torch.float32, device="meta"))
        return reason_against(x, loaded) or weights.reason_against_fp8(layer.weight.device) or reason_against_card(layer.weight.device)
    # Check a contiguous weight: one still to be mapped (tiny/shared_weights.py) has no strides yet. Each call checks the
    # real one.
    weight = torch.empty_like(layer.weight, device="meta", memory_format=torch.contiguous_format)
    return reason_against(weight[:1], weight) or reason_against_card(layer.weight.device)


def is_ffn(module: Any) -> bool:
    """Whether a module is a gated FFN with the activation that our launch computes."""
    return hasattr(module, "gate_up_proj") and type(getattr(module, "act_fn", None)) is GeluAndMul and module.act_fn.approximate == "tanh"


def is_large(gate_up: Any) -> bool:
    """Whether an FFN's first weight is unquantised, with at least :data:`LARGE_FFN` outputs on this rank."""
    return isinstance(gate_up, LinearBase) and weight_formats.is_plain(gate_up) and gate_up.weight.shape[0] >= LARGE_FFN


def install(model: Any, overlap: bool = False) -> list[str]:
    """Replace the method of every linear layer in a ``Gemma4TextModel`` or a similar module.

    Args:
        overlap: whether a MoE layer's dense FFN runs in parallel with its router and experts
            (``dense_beside_experts.py``), for which other limits of rows were measured.

    Returns:
        One line for each reason why layers stay as they are.
    """
    limits = {id(ffn.gate_up_proj): MOST_ROWS_OF_NARROW for ffn in model.modules() if is_ffn(ffn) and is_large(ffn.gate_up_proj)}
    for ffn in [layer.mlp for layer in model.modules() if overlap and getattr(layer, "enable_moe_block", False)]:
        limits |= {id(ffn.gate_up_proj): MOST_ROWS_OF_NARROW, id(ffn.down_proj): MOST_ROWS_OF_LAST_BESIDE_EXPERTS}
    kept: dict[str, str] = {}
    methods: dict[int, FewRows] = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, LinearBase) or isinstance(layer.quant_method, FewRows):
            continue
        problem = reason_against_linear(layer)
        if problem is not None:
            kept.setdefault(problem, name)
            continue
        methods[id(layer)] = few_row_method(layer, limits.get(id(layer)))
        layer.quant_method = methods[id(layer)]
    for layer in model.modules():
        if is_ffn(layer) and id(layer.gate_up_proj) in methods:
            GatedFeedForward(layer, methods[id(layer.gate_up_proj)])
    return [f"{name}: {problem}" for problem, name in kept.items()]
