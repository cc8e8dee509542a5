"""Stand-in for the CPU build of ``sgl_kernel``: the names SGLang imports on a machine without a GPU.

It is found first because ``sglang_gemma4.cpu.environment`` puts its folder in front of PYTHONPATH. The work is done
in ``sglang_gemma4.cpu``. It defines no AMX operator, so SGLang takes its plain torch paths everywhere else.
"""

from typing import Any

import torch

from sglang_gemma4.cpu import cache_locations, sampling, tree, verify

__version__ = "0+sglang_gemma4"

build_tree_kernel_efficient_cpu = tree.build_tree
fill_bonus_tokens_cpu = cache_locations.bonus_tokens
fill_accept_out_cache_loc_cpu = cache_locations.accepted_slots
copy_all_layer_kv_cache_cpu = cache_locations.copy_rows
verify_tree_greedy_cpu = verify.verify_greedy
assign_req_to_token_pool_cpu = cache_locations.write_slots
assign_extend_cache_locs_cpu = cache_locations.read_slots


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """The ``topk * num_steps`` slots after each request's last token."""
    cache_locations.read_slots(req_pool_indices, req_to_token, seq_lens, seq_lens + topk * num_steps, out_cache_loc)


def rotate_input_ids_cpu(*args: Any, **kwargs: Any) -> None:
    """Multi-layer EAGLE only; Gemma 4 has no such draft."""
    raise NotImplementedError("the CPU reference engine has no multi-layer EAGLE (rotate_input_ids_cpu)")


def build_draft_decode_metadata_cpu(*args: Any, **kwargs: Any) -> None:
    """Part of SGLang's own CPU backend for EAGLE's draft steps, which :mod:`sglang_gemma4.cpu.own_drafts` replaces."""
    raise NotImplementedError(
        "the CPU reference engine describes draft steps itself (cpu/own_drafts.py), not by build_draft_decode_metadata_cpu"
    )


_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
_library.impl("murmur_hash32_cpu", sampling.murmur_hash32, "CPU")
