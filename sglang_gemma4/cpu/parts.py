"""The CPU reference engine: SGLang without a GPU."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching.arguments import SeenAs


def reads_pages(server_args: Any, previous: Callable[[Any], None]) -> None:
    """Around SGLang's check for backends that read a unified pool's pages: shown ``triton`` in place of ours."""
    from sglang.srt.arg_groups.model_override_base import attention_backends_of, resolved_view

    resolved = resolved_view(server_args)
    ours = resolved.enable_unified_memory and set(attention_backends_of(resolved)) <= {"intel_amx", "torch_native"}
    previous(SeenAs(server_args, attention_backend="triton") if ours else server_args)
