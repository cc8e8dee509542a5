"""The launch of norms and rotation writes keys and values to the KV pool too, on triton.

On 26B-A4B that is one launch less in each of 30 layers: ``store_kvcache_kernel`` took 31.8 µs of a verify step at batch 1
(runs/2026-11-22-26b-kernels-steps). What it saves in a server is not measured yet.

SGLang has such a launch and keeps it off for Gemma 4, after an "accuracy regression in launch_server path" whose cause it does not name
and reading does not settle. What reading shows of that launch (models/utils.py:306, kernels/jit/csrc/elementwise/rope.cuh), and ours does
otherwise: it takes ``out_cache_loc`` for every layer, which in a sliding layer's buffer are other tokens' slots (it was meant for full
layers alone); it writes padding tokens into slot 0, which ``store_kvcache_kernel`` skips; and nothing in it asks whether a prefill graph is
being captured, whose attention gets another batch, with other rows, when the graph is replayed.
"""

import pkgutil
from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, switches, uses

MEMORY_POOL = "sglang.srt.mem_cache.memory_pool"
WRITES = {
    "sglang.srt.layers.attention.triton_backend.TritonAttnBackend._set_kv_buffer": "5b11c98941c9",
    "sglang.srt.mem_cache.swa_memory_pool.SWAKVPool.set_kv_buffer": "fa5871e2fb42",
    "sglang.srt.mem_cache.unified_memory_pool.UnifiedSWAKVPool.set_kv_buffer": "fc13e6f399ad",
    f"{MEMORY_POOL}.MHATokenToKVPool.set_kv_buffer": "f0e58db1c519",
    f"{MEMORY_POOL}.MHATokenToKVPool._store_kv_layer": "d3f3939d6ff7",
    f"{MEMORY_POOL}.KVWriteLoc": "e8a5d95ba308",
}
"""What SGLang writes through, by the fingerprint of the source that ``models.kv_write`` follows."""


def write_early(_result: None, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4TextModel.__init__``."""
    from sglang_gemma4.models.layers import kv_write

    problem = reason_against()
    if problem is not None:
        decline("kv_write", problem)
    kv_write.want(problem is None)


def reason_against() -> str | None:
    """Why keys and values of this process are SGLang's to write, or None."""
    from sglang.srt.environ import envs

    from sglang_gemma4.patching.supported import fingerprint

    if not switches.part_is_on("qkv_rope", PATCH.switch):
        return "qkv_rope is off, whose launch would write"
    if envs.SGLANG_ENABLE_ASYNC_ASSERT.get():
        return "SGLang is asked to check each location as it is written"
    for target, expected in WRITES.items():
        write = pkgutil.resolve_name(target)
        if hasattr(write, "__wrapped__"):
            return f"{target} is hooked"
        try:
            found = fingerprint(write)
        except (TypeError, OSError) as error:
            return f"{target} has no source to compare: {error}"
        if found != expected:
            return f"{target} has source {found}, the patch was written for {expected}"
    return None


PATCH = Patch(
    switch="SGLANG_GEMMA4_QKV",
    why="A layer's keys and values go through memory once more, in a launch of its own, to get from the rotation into the KV pool.",
    evidence="runs/2026-11-22-26b-kernels-steps (store_kvcache_kernel: 30 launches, 31.8 µs a step at batch 1) · "
    "srt/models/gemma4_causal.py:513-525 (SGLang's own, switched off; the module says how it differs) · measured together with "
    "dependent_launch only",
    remove_when="SGLang's Gemma4Attention writes keys and values in the launch that rotates them, sliding layers too.",
    uses=(uses.triton_decode, uses.kernels),
    hooks=(Hook("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", "after", write_early, "b7e9b394300f"),),
)
