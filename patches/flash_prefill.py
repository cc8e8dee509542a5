"""On Hopper, prefills of 1,024 tokens and more go through FlashAttention-4, for layers where it is measured faster."""

from typing import Any

from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import Hook, Patch, decline, note, tell, uses


def prefill_by_flash(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``, and after ``prefill_attention`` has put its kernel there and ``kv_formats`` its class."""
    from sglang_gemma4.attention import flash_choice, flash_prefill
    from sglang_gemma4.attention.prefill import PrefillAttention
    from sglang_gemma4.attention.quantised import ReadsLevels

    if runner.is_draft_worker or not named_gemma4(runner.model_config.hf_config):
        return
    problem = flash_prefill.problem() or flash_prefill.unused_by(runner, isinstance(backend, ReadsLevels))
    ours = backend.extend_attention_fwd
    if problem is None and not isinstance(ours, PrefillAttention):
        problem = "prefill_attention is off, beside whose kernel it takes the long prefills"
    if problem is not None:
        decline("flash_prefill", problem)
        return
    from sglang.kernels.ops.attention.flash_attention_v4 import flash_attn_varlen_func

    choice = flash_choice.chosen(flash_attn_varlen_func, flash_prefill.kinds_of(runner.model), runner.dtype, backend.device)
    tell("flash_prefill", f"FlashAttention-4 {choice.took}, prefills {'; '.join(choice.taken) or 'no kind of layer'}")
    if not choice.taken:
        decline("flash_prefill", f"our kernel prefills layers of {'; '.join(choice.left)}")
        return
    for left in choice.left:
        note("flash_prefill", f"our kernel prefills layers of {left}")
    ours.flash = choice.flash


PATCH = Patch(
    switch="SGLANG_GEMMA4_FLASH_PREFILL",
    why="Prefills of 8,000 tokens spend much of their time in attention, where FlashAttention-4 can be the faster kernel on Hopper: "
    "each kind of layer is measured when the server starts, and goes through the faster one; SGLang's "
    "backend for it reads keys by page, without bulk copies, and needs a second backend beside it for decode.",
    evidence="runs/2026-11-22-26b-kernels-serve (summaries: more than half of the time is prefill) · "
    "kernels/ops/attention/flash_attn/cute/flash_fwd_sm90.py:75 · H200, 26B-A4B, against the package without it: a prompt of 8,000 tokens "
    "takes 13 % less time, eight 11 % (five repetitions), runs/2026-11-23-26b-prefill-flash; 30 prompts of 7,000 are 10 % faster, "
    "runs/2026-11-23-26b-prefill · compiling and measuring took 7 to 19 s of a start",
    remove_when="--prefill-attention-backend fa4 is measured to be as fast.",
    uses=(uses.triton_prefill, uses.hopper, uses.any_batch),
    hooks=(Hook("sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__", "after", prefill_by_flash, "e7fa3a24cfc9"),),
)
