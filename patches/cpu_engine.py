"""Attention and the kernels SGLang needs, in torch and float32."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Entry, Hook, Patch, resolution_step
from sglang_gemma4.patching.arguments import SeenAs

BACKENDS = "sglang.srt.layers.attention.attention_registry.ATTENTION_BACKENDS"
BACKEND = "sglang_gemma4.cpu.attention_backend:Gemma4CpuAttention"


def reads_pages(server_args: Any, previous: Callable[[Any], None]) -> None:
    """A wrapper of SGLang's list of backends that read a unified pool's pages, which does not know ours."""
    from sglang.srt.arg_groups.model_override_base import attention_backends_of, resolved_view

    resolved = resolved_view(server_args)
    ours = resolved.enable_unified_memory and set(attention_backends_of(resolved)) <= {"intel_amx", "torch_native"}
    previous(SeenAs(server_args, attention_backend="triton") if ours else server_args)


PATCH = Patch(
    switch="SGLANG_GEMMA4_CPU",
    why="Without AMX, SGLang demotes intel_amx to torch_native, which neither translates sliding-window slots nor verifies "
    "drafts; with it, the kernels come from a build of sgl_kernel that no registry carries.",
    evidence="arg_groups/overrides.py:1301 · layers/attention/torch_native_backend.py · frozen_kv_mtp_worker_v2.py (topk > 1)",
    remove_when="SGLang serves Gemma 4 with MTP on a CPU without AMX.",
    hooks=(
        Entry(BACKENDS, "intel_amx", BACKEND, "a1988fa258e1"),
        Entry(BACKENDS, "torch_native", BACKEND, "1727eff9e9ab"),
        Hook(
            "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker._init_draft_attn_backend",
            "around",
            "sglang_gemma4.cpu.attention_backend:draft_backend",
            "521cbe95ce3b",
        ),
        resolution_step("handle_page_major_kv_layout", reads_pages),
    ),
    cpu_engine=True,
)
