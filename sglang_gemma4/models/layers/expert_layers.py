"""Gemma 4's expert layers through our kernels, by number of tokens; SGLang's kernels compute what ours do not take."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sglang_gemma4.kernels import warpgroup_products
from sglang_gemma4.kernels.card import reason_against_device
from sglang_gemma4.kernels.experts import chunk_experts, expert_routing, few_token_experts
from sglang_gemma4.kernels.experts.expert_blocks import Blocks
from sglang_gemma4.kernels.experts.gated_experts import reason_against
from sglang_gemma4.kernels.experts.grouped_experts import grouped_experts
from sglang_gemma4.kernels.experts.prefill_experts import prefill_experts, reason_against_card, tiles_for
from sglang_gemma4.kernels.four_bits import PLACES
from sglang_gemma4.kernels.weights import Weight
from sglang_gemma4.models import derived
from sglang_gemma4.models.layers import weight_formats
from sglang_gemma4.models.layers.room import shared_room
from sglang_gemma4.patching import takes

Kernel = Callable[[torch.Tensor, Weight, Weight, torch.Tensor, torch.Tensor], torch.Tensor]

GROUPED_LEAST, GROUPED_MOST = 32, 320
"""Tokens of ``grouped_experts``, up to a verify step of 80 requests with 4 draft tokens.

Beyond, SGLang's larger tiles are faster.
"""
GROUPED_LEAST_OF_QUANTISED = 17
"""Fewest tokens of ``grouped_experts`` for quantised experts, from which on SGLang is slower.

Its fp8 launches also quantise activations, and it has no tuned tiles for 4 bits: at 32 tokens on an H200 it takes 15
times as long (``runs/2026-11-26-26b-h200-int4``).
"""
PREFILL_LEAST = 1024
"""Fewest tokens of ``prefill_experts``; not measured below."""
PREFILL_LEAST_OF_GROUPED = 2049
"""Fewest tokens of ``prefill_experts`` for 4-bit experts, which it dequantises first.

On 26B-A4B and an H200 ``grouped_experts`` takes 1.08 ms for 2,048 tokens and ``prefill_experts`` 1.05. At 1,024 tokens
the former is faster, at 8,192 the latter (``runs/2026-11-26-26b-h200-int4``). If the tiles of ``prefill_experts`` are
not for the GPU, ``grouped_experts`` takes all batches.
"""


CHUNK_MOST = 4096
"""Most tokens of ``chunk_experts``, for which it takes 1.23 ms and ``prefill_experts`` 1.37.

Larger batches were not timed (``runs/2026-11-29-26b-h200-int4-gaps``).
"""


class ExpertKernels:
    """Replaces a layer's ``run_moe_core`` for batches of ``least`` to ``most`` tokens; others go to the previous one.

    Args:
        name: the patch's, for its notes.
        layer: SGLang's ``FusedMoE`` of a Gemma 4 layer.
        activation: the model's ``hidden_activation``.
        against_card: returns why the kernel is not for a GPU, or None.
        quantised: whether the kernel takes quantised experts.
    """

    def __init__(
        self,
        name: str,
        layer: Any,
        activation: str,
        kernel: Kernel,
        least: int,
        most: int,
        against_card: Callable[[torch.device], str | None] = lambda device: None,
        quantised: bool = True,
    ) -> None:
        self.name, self.layer, self.activation, self.against_card, self.quantised = name, layer, activation, against_card, quantised
        self.kernel, self.least, self.most = kernel, least, most
        self.before = layer.run_moe_core
        self.declined = False
        """Whether a batch of ``least`` to ``most`` tokens was left to SGLang."""
        self.steps = 0
        """Batches computed here; read by tests."""

    def __call__(self, dispatch_output: Any) -> Any:
        """SGLang's combine input with ``[tokens, hidden]``, from its dispatch output."""
        tokens = dispatch_output.hidden_states.shape[0]
        if not self.least <= tokens <= self.most:
            return self.before(dispatch_output=dispatch_output)
        reason = self.reason_against(dispatch_output)
        if not takes(self.name, reason, "SGLang's kernels compute the experts"):
            self.declined = True
            return self.before(dispatch_output=dispatch_output)
        from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

        routed = dispatch_output.topk_output
        layer = self.layer
        w13, w2 = weight_formats.experts_weights(layer)
        out = self.kernel(dispatch_output.hidden_states, w13, w2, routed.topk_weights, routed.topk_ids)
        self.steps += 1
        return StandardCombineInput(hidden_states=out)

    def reason_against(self, dispatch_output: Any) -> str | None:
        """Why our kernels do not take this batch, or None."""
        from sglang.srt.distributed.device_communicators.pynccl_allocator import is_symmetric_memory_enabled
        from sglang.srt.layers.moe.topk import TopKOutputChecker
        from sglang.srt.runtime_context import get_exec

        if not dispatch_output.format.is_standard():  # another class's, of expert parallelism
            return f"tokens come to a {type(self.layer).__name__} as {dispatch_output.format.value}"
        method, config = self.layer.quant_method, self.layer.moe_runner_config
        if problem := weight_formats.reason_against_experts(self.layer):
            return problem
        if not self.quantised and not weight_formats.is_plain(self.layer):
            return "the weights are quantised, and so many tokens are SGLang's"
        if problem := weight_formats.reason_against_backend(self.layer):
            return problem
        if self.activation != "gelu_pytorch_tanh" or config.activation not in ("gelu", "gelu_tanh") or not config.is_gated:
            return f"activation {self.activation}, {config.activation} in the runner; gated gelu_pytorch_tanh is supported"
        if config.apply_router_weight_on_input or config.no_combine or config.routed_scaling_factor not in (None, 1.0):
            return "router weights on the input, no sum over experts or a scaled sum"
        if getattr(method, "with_bias", False) or getattr(method, "w13_swiglu_interleaved", False):
            return "experts with a bias or interleaved gates"
        if get_exec().moe.enable_fused_moe_sum_all_reduce or get_exec().deterministic.enable_deterministic_inference:
            return "a fused all-reduce or --enable-deterministic-inference"
        if torch.compiler.is_compiling():
            return "torch.compile traces the layer"
        if is_symmetric_memory_enabled():
            return "--enable-symm-mem needs the output in symmetric memory"
        if not TopKOutputChecker.format_is_standard(dispatch_output.topk_output):
            return "the experts' kernel does the routing"
        if dispatch_output.hidden_states_pre_quant is not None:
            return "the activation is quantised"
        x, routed = dispatch_output.hidden_states, dispatch_output.topk_output
        given = (x, *weight_formats.experts_weights(self.layer), routed.topk_weights, routed.topk_ids)
        return reason_against_device(x.device) or self.against_card(x.device) or reason_against(*given)


@dataclass
class Chosen:
    """A router's choice, with the logits it was made from; shapes as in ``expert_routing``."""

    logits: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor
    blocks: Blocks


class FewTokenExperts(ExpertKernels):
    """Routing and experts of one ``Gemma4MoE`` at 1 to 16 tokens: the launch that chooses also gathers rows by expert.

    It replaces SGLang's routing function too, and keeps the blocks until the experts are computed with the very same
    ids. Once it has declined a batch, SGLang routes all later ones.
    """

    def __init__(self, moe: Any, hidden: int, activation: str) -> None:
        from sglang.srt.environ import envs
        from sglang.srt.runtime_context import get_exec

        super().__init__("few_token_experts", moe.experts, activation, self.compute, 1, expert_routing.MOST_TOKENS)
        self.against_routing: str | None = None
        """Why SGLang keeps routing on this server, whichever kernels compute the experts; or None."""
        if envs.SGLANG_SIMULATE_UNIFORM_EXPERTS.get() or envs.SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS.get():
            self.against_routing = "simulated experts are written over the ids afterwards, into the same tensor"
        elif get_exec().moe.ep_dispatch_algorithm == "fake":
            self.against_routing = "--ep-dispatch-algorithm fake writes over the logits, into the same tensor"
        elif get_exec().deterministic.enable_deterministic_inference:
            self.against_routing = "--enable-deterministic-inference: more tokens get weights that are summed in another order"
        self.scale = moe.per_expert_scale
        self.stock_routing = moe.topk.topk_config.custom_routing_function
        self.done = derived.scratch(moe, "few_token_experts_done", few_token_experts.counters(hidden, moe.per_expert_scale.device))
        self.ids: torch.Tensor | None = None
        self.blocks: Blocks | None = None
        self.chosen: Chosen | None = None
        """What ``router_choice.py`` chose in the router's GEMM, kept until the routing is asked for."""
        self.taken = 0
        """Batches whose blocks came from the routing; read by tests."""
        self.topk = moe.topk.topk_config.top_k
        moe.few_token_experts = self
        moe.topk.topk_config.custom_routing_function = self.route
        moe.experts.run_moe_core = self

    def route(
        self, hidden_states: torch.Tensor, gating_output: torch.Tensor, topk: int, renormalize: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights ``[tokens, topk]`` float32 and ids ``[tokens, topk]`` int32, like SGLang's routing function."""
        chosen, self.ids, self.blocks, self.chosen = self.chosen, None, None, None
        if chosen is not None and chosen.logits is gating_output and topk == self.topk:
            self.ids, self.blocks = chosen.ids, chosen.blocks
            return chosen.weights, chosen.ids
        if self.may_route(gating_output):
            reason = self.against_routing or expert_routing.reason_against(gating_output, self.scale, topk)
            if takes(self.name, reason, "SGLang chooses the experts"):
                weights, self.ids, self.blocks = expert_routing.expert_routing(gating_output, self.scale.data, topk)
                return weights, self.ids
        routed: tuple[torch.Tensor, torch.Tensor] = self.stock_routing(hidden_states, gating_output, topk, renormalize)
        return routed

    def may_route(self, rows: torch.Tensor) -> bool:
        """Whether the experts of a batch with these rows are chosen here. False if SGLang will compute them."""
        takes = self.least <= rows.shape[0] <= self.most and not self.declined and not torch.compiler.is_compiling()
        return takes and reason_against_device(rows.device) is None

    def compute(self, x: torch.Tensor, w13: Weight, w2: Weight, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The weighted sum of each token's experts, ``[tokens, hidden]``."""
        blocks = self.blocks if ids is self.ids else None
        self.taken += blocks is not None
        self.ids = self.blocks = None
        return few_token_experts.few_token_experts(x, w13, w2, weights, ids, self.done, blocks)


def take_few_tokens(moe: Any, hidden: int, activation: str) -> None:
    """Take batches of up to 16 tokens of this ``Gemma4MoE``; ``hidden`` is its width."""
    FewTokenExperts(moe, hidden, activation)


def take_groups(layer: Any, activation: str) -> None:
    """Take batches of 32 to 320 tokens of this ``FusedMoE``.

    Below, SGLang's kernels are no slower (runs/2026-11-22-kernel-times), unless the experts are quantised. For 4-bit
    experts there is no upper limit: this takes every batch that ``prefill_experts`` declined.
    """
    least = GROUPED_LEAST if weight_formats.is_plain(layer) else GROUPED_LEAST_OF_QUANTISED
    most = sys.maxsize if _are_grouped(layer) else GROUPED_MOST
    layer.run_moe_core = ExpertKernels("grouped_experts", layer, activation, grouped_experts, least, most)


def _are_grouped(layer: Any) -> bool:
    return weight_formats.reason_against_experts(layer) is None and weight_formats.experts_are_grouped(layer)


def aligned_blocks(ids: torch.Tensor, experts: int, size: int) -> Blocks:
    """As ``expert_blocks``, by SGLang's compiled kernels, which are faster for tens of thousands of rows.

    Each program of ours counts all rows. An expert's rows are in any order; rows of no expert are in blocks of expert
    -1.
    """
    from sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size import moe_align_block_size

    rows, known, padded = moe_align_block_size(ids, size, experts)
    most = len(rows) // size
    return Blocks(known[:most], rows[: most * size].view(most, size), padded // size)


def many_token_experts(
    x: torch.Tensor, w13: Weight, w2: Weight, weights: torch.Tensor, ids: torch.Tensor, room: torch.Tensor | None = None
) -> torch.Tensor:
    """``prefill_experts`` with blocks from SGLang's kernels, or from ours where kernels are interpreted."""
    tiles = tiles_for(x.dtype)
    blocks = aligned_blocks(ids, w13.shape[0], tiles[0]) if ids.is_cuda else None
    return prefill_experts(x, w13, w2, weights, ids, blocks, tiles, room=room)


def chunk_of_four_bits(
    x: torch.Tensor, w13: Weight, w2: Weight, weights: torch.Tensor, ids: torch.Tensor, tile: warpgroup_products.Tile | None = None
) -> torch.Tensor:
    """``chunk_experts`` with blocks from SGLang's kernels."""
    tile = tile or chunk_experts.tile_for(len(x))
    return chunk_experts.chunk_experts(x, w13, w2, weights, ids, aligned_blocks(ids, w13.shape[0], tile.rows), tile)


class ChunkExperts(ExpertKernels):
    """4-bit experts of a ``FusedMoE`` in a chunk of more tokens than a verify step has, on a Hopper GPU."""

    def __init__(self, layer: Any, activation: str) -> None:
        against = warpgroup_products.reason_against_card
        super().__init__("chunk_experts", layer, activation, chunk_of_four_bits, GROUPED_MOST + 1, CHUNK_MOST, against)

    def reason_against(self, dispatch_output: Any) -> str | None:
        """Why our kernels do not take this batch, or None."""
        if reason := super().reason_against(dispatch_output):
            return reason
        routed = dispatch_output.topk_output
        weights = weight_formats.experts_weights(self.layer)
        return chunk_experts.reason_against(dispatch_output.hidden_states, *weights, routed.topk_weights, routed.topk_ids)


def take_chunks(layer: Any, activation: str) -> None:
    """Take batches of 321 to 4,096 tokens of this ``FusedMoE`` where its experts have 4 bits."""
    if _are_grouped(layer):
        layer.run_moe_core = ChunkExperts(layer, activation)


class ManyTokenExperts(ExpertKernels):
    """The experts of a ``FusedMoE`` in a prefill chunk.

    The weights of 4-bit experts are dequantised first, one GEMM's after the other, into memory that all layers of a
    model share. That memory is allocated with the weights, so that KV pools are sized for what it leaves.
    """

    def __init__(self, layer: Any, activation: str) -> None:
        grouped = _are_grouped(layer)
        least = PREFILL_LEAST_OF_GROUPED if grouped else PREFILL_LEAST
        super().__init__("prefill_experts", layer, activation, self.compute, least, sys.maxsize, reason_against_card, quantised=grouped)
        packed = layer.w13_weight_packed if grouped else None
        self.room: torch.Tensor | None = None
        if packed is not None and (reason_against_device(packed.device) or reason_against_card(packed.device)) is None:
            numbers = PLACES * max(packed.numel(), layer.w2_weight_packed.numel())
            self.room = shared_room("experts", numbers, layer.w13_weight_scale.dtype, packed.device)

    def compute(self, x: torch.Tensor, w13: Weight, w2: Weight, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The weighted sum of each token's experts, ``[tokens, hidden]``."""
        return many_token_experts(x, w13, w2, weights, ids, self.room)


def take_many(layer: Any, activation: str) -> None:
    """Take prefill chunks of this ``FusedMoE``: batches of 1,024 tokens and more, with 4-bit experts 2,049 and more."""
    layer.run_moe_core = ManyTokenExperts(layer, activation)
