"""Decode and verify steps of a model with experts have CUDA graphs at the batch sizes where padding would cost."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, tell, uses

NAME = "graph_sizes"
DRAFT_STEPS = 3
RUNNING_UNDER_SPECULATION = 48
"""Requests that SGLang runs at once where the operator does not say; decided after the sizes (srt/arg_groups/speculative_hook.py:992)."""


def choose(original: Callable[[Any, int], list[int]], server_args: Any, max_bs: int) -> list[int]:
    """Around ``generate_decode_cuda_graph_batch_sizes``, which SGLang asks where the operator named no sizes."""
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view

    from sglang_gemma4.models.schedule import graph_sizes

    given, config = resolving_view(server_args), model_config_of(server_args)
    text = config.hf_text_config
    ours = config.hf_config.architectures[0].startswith("Gemma4") and getattr(text, "enable_moe_block", False)
    if not ours or given.disable_cuda_graph_padding:
        return original(server_args, max_bs)
    drafts = given.speculative_algorithm is not None
    if drafts and not uses.asks_graph_sizes():
        return original(server_args, max_bs)
    rows = given.speculative_num_draft_tokens or (given.speculative_num_steps or DRAFT_STEPS) + 1 if drafts else 1
    running = given.max_running_requests or (RUNNING_UNDER_SPECULATION if drafts else max_bs)
    step = graph_sizes.Step(text.num_experts, text.top_k_experts, rows)
    found = sorted({*graph_sizes.sizes(step, min(max_bs, running)), max_bs})
    tell(NAME, f"{len(found)} batch sizes for decode graphs, SGLang's are {len(original(server_args, max_bs))}: {found}")
    return found


PATCH = Patch(
    switch="SGLANG_GEMMA4_GRAPH_SIZES",
    why="A batch between two captured sizes is padded, and padded rows read experts. SGLang's sizes are far apart where that costs most: "
    "without speculation a batch of 5 is computed as 8, 9 as 12, 17 as 24; with it 33 as 40.",
    evidence="srt/arg_groups/cuda_graph_hook.py:500 · srt/model_executor/forward_batch_info.py:2271 (only under expert or data parallelism "
    "are padded rows left out of the experts) · H200, every batch from 1 to 80, runs/2026-11-27-26b-h200-step-curve-plain: SGLang's 14 "
    "sizes take up to 31 % more than the fastest found (at 5; 2.2 % on average), ours up to 1.7 (0.1), for 4.8 s of a start and 0.10 GB; "
    "with MTP 0.3 % (runs/2026-11-27-26b-h200-step-curve), so there it is off unless asked for",
    remove_when="SGLang leaves padded rows out of the experts, or captures sizes by what padding costs.",
    uses=(uses.moe, uses.decode_graphs, uses.padded_graphs),
    hooks=(Hook("sglang.srt.arg_groups.cuda_graph_hook.generate_decode_cuda_graph_batch_sizes", "around", choose, "5df5fbe8d978"),),
)
