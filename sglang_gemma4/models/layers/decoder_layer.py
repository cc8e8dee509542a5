"""Gemma 4's decoder layer, with its norms in fewer launches.

It hooks into two places of SGLang's layer, so that sums over ranks, captured hidden states and pipeline stages stay
where they are: the read of the residual after attention, when the attention's sum over ranks is complete, and
``_next_stream``, the layer's output.

A launch may compute a later norm ahead (the router's, the experts', the next layer's). :class:`ReadyNorm` keeps the
result and returns it if asked for the norm of the very same tensor; for any other it computes the norm. So a residual
that was moved, cut or replaced in between gets its own norm.
"""

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.batch_invariant_ops import is_batch_invariant_mode_enabled
from sglang.srt.layers.layer_boundary import SumGroup
from sglang.srt.layers.layer_boundary.residual.add_norm import NormReadout
from sglang.srt.layers.layernorm import Gemma4RMSNorm, RMSNorm

from sglang_gemma4.kernels.card import reason_against_device
from sglang_gemma4.kernels.dense import gated_embedding
from sglang_gemma4.kernels.norms import layer_tail, triple_rmsnorm


class ReadyNorm:
    """A norm's ``forward`` that returns, once, what was computed ahead for its input."""

    def __init__(self, norm: Any) -> None:
        self.norm = norm
        self.source: torch.Tensor | None = None
        self.normed: torch.Tensor | None = None
        self.taken = 0
        """How often a norm computed ahead was used; read by tests."""
        norm.forward = self

    def offer(self, source: torch.Tensor, normed: torch.Tensor) -> None:
        """Keep ``normed``, this norm of ``source``, for the next call."""
        self.source, self.normed = source, normed

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """What ``norm(x, ...)`` returns."""
        source, normed = self.source, self.normed
        self.source = self.normed = None
        if normed is not None and x is source and not args and not kwargs:
            self.taken += 1
            return normed
        return type(self.norm).forward(self.norm, x, *args, **kwargs)


def ready(norm: Any) -> ReadyNorm:
    """The :class:`ReadyNorm` of a norm, made at the first call."""
    present = norm.__dict__.get("forward")
    return present if isinstance(present, ReadyNorm) else ReadyNorm(norm)


def eps_of(norm: Any) -> float:
    """The epsilon of either of SGLang's norm classes."""
    return float(norm.eps if isinstance(norm, Gemma4RMSNorm) else norm.variance_epsilon)


def reason_against_norm(*norms: Any) -> str | None:
    """Why one of these norms is not ``x / rms(x) * weight``, or None."""
    for norm in norms:
        if type(norm) is Gemma4RMSNorm:
            plain = norm.scale_shift == 0.0
        elif type(norm) is RMSNorm:
            plain = norm.has_weight and not norm.cast_x_before_out_mul and norm.variance_size_override is None and not norm.fp32_residual
            plain = plain and norm._quant_linear is None
        else:
            plain = False
        if not plain:
            return f"a norm is {norm!r}"
    return None


def no_rows(x: Any) -> bool:
    """Whether a hidden state is an idle rank's, without tokens. A quantised one is a tuple, and has tokens."""
    return isinstance(x, torch.Tensor) and x.shape[0] == 0


def reason_against_tensor(x: Any) -> str | None:
    """Why none of our kernels takes this hidden state, or None."""
    if not isinstance(x, torch.Tensor) or x.dim() != 2:
        return f"the hidden state is {tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__}"
    if problem := reason_against_device(x.device):
        return problem
    if is_batch_invariant_mode_enabled():
        return "deterministic inference asks for SGLang's batch-invariant norms"
    if torch.compiler.is_compiling():
        return "torch.compile traces the layer"
    return None


@dataclass
class AfterAttention:
    """The norms that follow a layer's attention, computed in one launch."""

    layer: Any
    problem: str | None
    """Why this layer keeps SGLang's norms, or None."""

    @classmethod
    def of(cls, layer: Any) -> "AfterAttention":
        """The norms of a ``Gemma4DecoderLayer``."""
        norms = [layer.post_attention_layernorm, layer.pre_feedforward_layernorm]
        if layer.enable_moe_block:
            norms += [layer.router.norm, layer.pre_feedforward_layernorm_2]
        return cls(layer, reason_against_norm(*norms))

    def reason_against(self, read: Any, update: Any, hidden_states: Any, residual: Any, quant_format: str, addition: Any) -> str | None:
        """Why this call of the boundary's read keeps SGLang's norms, or None."""
        if self.problem is not None:
            return self.problem
        if type(read.inner) is not NormReadout or read.transform.apply is not self.layer.post_attention_layernorm:
            return f"the residual is read by {type(read.inner).__name__}"
        if not update.is_plain_add or quant_format or addition is not None:
            return f"the read has update {type(update).__name__}, quantisation {quant_format!r} or something to add"
        return reason_against_tensor(hidden_states) or triple_rmsnorm.reason_against(hidden_states, residual, {})

    def read(self, hidden_states: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The dense FFN's input and the residual, which is updated in place as SGLang's fused norm does.

        Args:
            hidden_states: ``[rows, hidden]``, the attention's complete output; ``residual`` alike.
        """
        layer, post, dense = self.layer, self.layer.post_attention_layernorm, self.layer.pre_feedforward_layernorm
        given = (hidden_states, residual, post.weight.data, dense.weight.data)
        eps: dict[str, Any] = {"post_eps": eps_of(post), "dense_eps": eps_of(dense)}
        if not layer.enable_moe_block:
            dense_input, written = triple_rmsnorm.triple_rmsnorm(*given, **eps)
            return dense_input, written
        if not layer.router._scale_fused:
            layer.router.fuse_scale()
        router, expert = layer.router.norm, layer.pre_feedforward_layernorm_2
        eps |= {"router_eps": eps_of(router), "expert_eps": eps_of(expert)}
        dense_input, written, router_input, expert_input = triple_rmsnorm.triple_rmsnorm(
            *given, router.weight.data, expert.weight.data, **eps
        )
        ready(router).offer(written, router_input)
        ready(expert).offer(written, expert_input)
        return dense_input, written


def chain(model: Any) -> None:
    """Tell each layer of a ``Gemma4TextModel`` which norm reads its output: the next layer's, or the model's last."""
    layers = [model.layers[number] for number in range(model.start_layer, model.end_layer)]
    following = [layer.input_layernorm for layer in layers[1:]]
    if model.pp_group.is_last_rank:
        following.append(model.norm)
    for layer, norm in zip(layers, following, strict=False):
        layer.next_norm = None if reason_against_norm(norm) else ready(norm)


def _next_norm(layer: Any) -> ReadyNorm | None:
    norm: ReadyNorm | None = layer.__dict__.get("next_norm")
    return norm


def _next_options(layer: Any) -> dict[str, Any]:
    following = _next_norm(layer)
    return {} if following is None else {"next_weight": following.norm.weight.data, "next_eps": eps_of(following.norm)}


def _hand_on(layer: Any, out: torch.Tensor, normed: torch.Tensor | None) -> torch.Tensor:
    following = _next_norm(layer)
    if following is not None and normed is not None:
        following.offer(out, normed)
    return out


def reason_against_tail(layer: Any, hidden_states: Any, residual: Any) -> str | None:
    """Why a layer without per-layer embeddings keeps SGLang's ``_next_stream``, or None."""
    norms = [layer.post_feedforward_layernorm]
    if layer.enable_moe_block:
        norms += [layer.post_feedforward_layernorm_1, layer.post_feedforward_layernorm_2]
    return reason_against_norm(*norms) or reason_against_tensor(hidden_states) or triple_rmsnorm.reason_against(hidden_states, residual, {})


def next_stream(layer: Any, hidden_states: torch.Tensor, residual: torch.Tensor, forward_batch: Any) -> torch.Tensor:
    """What ``Gemma4DecoderLayer._next_stream`` returns for a layer without per-layer embeddings.

    The same launch computes the next layer's input norm.
    Args:
        hidden_states: ``[rows, hidden]``, the dense FFN's input; ``residual`` alike.
    """
    boundary, norm = layer.ffn_boundary, layer.post_feedforward_layernorm
    dense = boundary.sum_part(layer.mlp(hidden_states), forward_batch, SumGroup.TP)
    options = _next_options(layer)
    if not layer.enable_moe_block:
        return _hand_on(layer, *layer_tail.tail(dense, residual, norm.weight.data, eps_of(norm), layer.layer_scalar, **options))
    logits = layer.router(residual)
    experts = layer.moe(layer.pre_feedforward_layernorm_2(residual), logits)
    experts = boundary.sum_part(experts, forward_batch, SumGroup.MOE_OUTPUT)
    one, two = layer.post_feedforward_layernorm_1, layer.post_feedforward_layernorm_2
    weights = (one.weight.data, two.weight.data, norm.weight.data)
    eps = (eps_of(one), eps_of(two), eps_of(norm))
    return _hand_on(layer, *layer_tail.dual_tail(dense, experts, residual, weights, layer.layer_scalar, eps, **options))


def reason_against_ple(layer: Any, hidden_states: Any, residual: Any, per_layer_input: Any) -> str | None:
    """Why a layer with per-layer embeddings keeps SGLang's ``_next_stream``, or None."""
    if layer.enable_moe_block:
        return "a layer has both experts and per-layer embeddings"
    problem = reason_against_norm(layer.post_feedforward_layernorm, layer.post_per_layer_input_norm) or reason_against_tensor(hidden_states)
    problem = problem or triple_rmsnorm.reason_against(hidden_states, residual, {})
    if problem is None and (per_layer_input.dtype != hidden_states.dtype or per_layer_input.stride(-1) != 1):
        problem = f"the per-layer embeddings are {per_layer_input.dtype} with strides {per_layer_input.stride()}"
    return problem


def next_stream_with_ple(
    layer: Any, hidden_states: torch.Tensor, residual: torch.Tensor, per_layer_input: torch.Tensor, forward_batch: Any
) -> torch.Tensor:
    """What ``Gemma4DecoderLayer._next_stream`` returns for a layer with per-layer embeddings.

    It is rounded where SGLang's separate kernels round.
    Args:
        hidden_states: ``[rows, hidden]``, the dense FFN's input; ``residual`` alike.
        per_layer_input: ``[rows, per-layer width]``.
    """
    norm, last = layer.post_feedforward_layernorm, layer.post_per_layer_input_norm
    dense = layer.ffn_boundary.sum_part(layer.mlp(hidden_states), forward_batch, SumGroup.TP)
    stream, _ = layer_tail.tail(dense, residual, norm.weight.data, eps_of(norm), rounded=True)
    gate, _ = layer.per_layer_input_gate(stream)
    added, _ = layer.per_layer_projection(gated_embedding.gated_embedding(gate, per_layer_input))
    options = _next_options(layer)
    return _hand_on(layer, *layer_tail.tail(added, stream, last.weight.data, eps_of(last), layer.layer_scalar, rounded=True, **options))
