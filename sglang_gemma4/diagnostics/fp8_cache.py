"""SGLang's fp8 KV cache is read by this package's attention where no layers share KV, too."""

from typing import Any


def read_levels(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__`` and ``kv_formats``, which leaves such a target to SGLang's kernels."""
    from sglang_gemma4.diagnostics import kv_format_flags

    config = runner.model_config.hf_config
    if kv_format_flags.readable(backend, runner) and not runner.is_draft_worker and not kv_format_flags.unmasked(config):
        kv_format_flags.take(backend)
