"""Before a verify's graph is replayed, the host launches what the graph reads, once, and nothing else."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch

BACKEND = "sglang.srt.layers.attention.triton_backend.TritonAttnBackend"
RUNNER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"


def keys_alone(original: Callable[..., Any], backend: Any, plan: Any, bs: int, seq_lens: Any, spec_info: Any, req_pool_indices: Any) -> Any:
    """Around ``_update_target_verify_buffers``, which fills what a verify's graph reads. A graph goes on running the kernel it was captured
    with, so where none was captured with SGLang's, none reads what that one would. Its only caller takes no result."""
    if not getattr(getattr(backend, "verify_splitkv_fwd", None), "reads_keys_only", False):
        return original(backend, plan, bs, seq_lens, spec_info, req_pool_indices)
    from sglang_gemma4.attention.verify import update_keys

    return update_keys(backend, plan, bs, seq_lens, req_pool_indices)


def copied_once(original: Callable[[Any], bool], runner: Any) -> bool:
    """Around ``_resolve_skips_prefilled_inputs``: a verify's tokens and positions are copied to its graph when the verify is prepared.

    SGLang copies them again when the graph is replayed, but for DSpark, whose verify is prepared and replayed in the same way. It still
    does where they are other tensors by then.
    """
    if runner.model_runner.is_draft_worker or not runner.model_runner.spec_algorithm.is_frozen_kv_mtp():
        return original(runner)
    return bool(runner.capture_forward_mode.is_target_verify())


PATCH = Patch(
    name="lean_verify",
    switch="SGLANG_GEMMA4_LEAN_VERIFY",
    why="Before each replay of a verify's graph SGLang launches eight kernels for a tree mask and offsets that our verify attention does "
    "not read, and copies tokens and positions to the graph a second time.",
    evidence="srt/layers/attention/triton_backend.py (_update_target_verify_buffers) · model_executor/runner/decode_cuda_graph_runner.py "
    "(_resolve_skips_prefilled_inputs)",
    remove_when="SGLang prepares a verify inside its graph.",
    hooks=(
        Hook(f"{BACKEND}._update_target_verify_buffers", "around", keys_alone, "e86fdbb9eed1"),
        Hook(f"{RUNNER}._resolve_skips_prefilled_inputs", "around", copied_once, "505a874b1a6b"),
    ),
)
