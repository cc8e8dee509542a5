"""The norms between attention and FFN (residual, dense, router and expert input) are one launch."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, takes, uses

NORMS = "_sglang_gemma4_after_attention"


def prepare_layer(_result: None, layer: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4DecoderLayer.__init__``."""
    from sglang_gemma4.models.layers.decoder_layer import AfterAttention

    setattr(layer.pre_feedforward_layernorm, NORMS, AfterAttention.of(layer))


def read_after_attention(
    original: Callable[..., Any],
    read: Any,
    update: Any,
    hidden_states: Any,
    residual: Any,
    norm: Any,
    quant_format: str = "",
    post_residual_addition: Any = None,
) -> Any:
    """Around ``_TransformedRead.update_and_read``: the residual after an attention whose sum is complete."""
    from sglang_gemma4.models.layers.decoder_layer import no_rows

    norms = getattr(norm, NORMS, None)
    if norms is None or residual is None or no_rows(hidden_states):
        return original(read, update, hidden_states, residual, norm, quant_format, post_residual_addition)
    problem = norms.problem_with(read, update, hidden_states, residual, quant_format, post_residual_addition)
    if not takes("triple_norm", problem):
        return original(read, update, hidden_states, residual, norm, quant_format, post_residual_addition)
    return norms.read(hidden_states, residual)


PATCH = Patch(
    switch="SGLANG_GEMMA4_NORMS",
    why="Between attention and FFN stock launches four norms in an MoE layer and two in a dense one; each reads its input again.",
    evidence="srt/models/gemma4_causal.py:698-712, 737-751 · runs/2026-11-21-26b-mtp-v2 (121 rmsnorm and 30 fused add launches a step) · "
    "the kernel alone 2.2 to 3.1 times as fast · H200, 26B-A4B, MTP steps against the package without it: 5.3, 3.1 and 1.3 % shorter at "
    "batch 1, 8 and 32, runs/2026-11-23-26b-pieces",
    remove_when="SGLang computes the norms after attention in one launch.",
    uses=(uses.kernels, uses.any_batch),
    hooks=(
        Hook("sglang.srt.models.gemma4_causal.Gemma4DecoderLayer.__init__", "after", prepare_layer, "5c0f55f26423"),
        Hook("sglang.srt.layers.layer_boundary.boundary._TransformedRead.update_and_read", "around", read_after_attention, "48a7f0ef9e18"),
    ),
)
