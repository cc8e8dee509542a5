"""Runs a MoE layer's dense FFN on a second stream, in parallel with router and experts.

Both read the same residual and join in the layer's tail. In decode and verify steps each of their launches leaves most
of the GPU idle. The stream is forked only inside CUDA graphs, where that costs nothing. Both sides must be plain
GEMMs, or quantised ones that share no memory. Others and LoRA adapters may use memory that all layers share one after
the other.
"""

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

from sglang_gemma4.models.layers import weight_formats
from sglang_gemma4.patching import takes

MOST_ROWS = 320
"""Most tokens: a verify step of 80 requests with 4 draft tokens; larger steps fill the GPU anyway."""


class DenseBesideExperts:
    """Replaces ``forward`` of a ``Gemma4DecoderLayer``'s ``mlp`` and ``moe``; all layers share one side stream.

    No memory is reused too early. The dense FFN's input lives until the layer is done, and its output is read after the
    join. What the side stream allocates is reused on that stream only, which starts by waiting for the main one.
    """

    def __init__(self, layer: Any, side: torch.cuda.Stream) -> None:
        self.layer, self.side, self.dense, self.experts = layer, side, layer.mlp.forward, layer.moe.forward
        self.forked = False
        self.layers = 0
        """Layers captured with a fork; read by tests."""
        layer.mlp.forward, layer.moe.forward = self.fork, self.join

    def fork(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """What the ``mlp`` returns; inside a capture its values are ready after :meth:`join`."""
        if x.shape[0] > MOST_ROWS or not torch.cuda.is_current_stream_capturing():
            return self.dense(x, *args, **kwargs)
        if not takes("dense_beside_experts", reason_against(self.layer)):
            return self.dense(x, *args, **kwargs)
        self.side.wait_stream(torch.cuda.current_stream())
        self.forked = True
        with torch.cuda.stream(self.side):
            return self.dense(x, *args, **kwargs)

    def join(self, *args: Any, **kwargs: Any) -> Any:
        """What the ``moe`` returns, after waiting for the dense FFN."""
        out = self.experts(*args, **kwargs)
        if self.forked:
            torch.cuda.current_stream().wait_stream(self.side)
            self.forked = False
            self.layers += 1
        return out


def reason_against(layer: Any) -> str | None:
    """Why a MoE layer runs its dense FFN before its experts, or None.

    Ask when the layer runs: LoRA wraps its layers after it was built.
    """
    products: tuple[tuple[str, Any, type, Callable[[Any], str | None]], ...] = (
        ("gate_up_proj", layer.mlp.gate_up_proj, MergedColumnParallelLinear, weight_formats.shares_memory),
        ("down_proj", layer.mlp.down_proj, RowParallelLinear, weight_formats.shares_memory),
        ("experts", layer.moe.experts, FusedMoE, weight_formats.reason_against_experts),
    )
    for name, product, kind, problem_of in products:
        if type(product) is not kind:
            return f"{name} is a {type(product).__name__}"
        if problem := problem_of(product):
            return f"{name}: {problem}"
    return None


def reason_against_this_server() -> str | None:
    """Why no MoE layer of this process runs its dense FFN in parallel with its experts, or None."""
    from sglang.srt.runtime_context import get_parallel

    if not torch.cuda.is_available():
        return "there is no CUDA GPU"
    if get_parallel().tp_size > 1:
        return f"--tp-size {get_parallel().tp_size}: the dense FFN's sum over ranks keeps its place in the order"
    return None


def install(model: Any) -> None:
    """Fork and join in every MoE layer of a ``Gemma4TextModel``."""
    side = torch.cuda.Stream()
    for number in range(model.start_layer, model.end_layer):
        layer = model.layers[number]
        if layer.enable_moe_block:
            DenseBesideExperts(layer, side)
