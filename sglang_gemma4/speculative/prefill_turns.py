"""A decode step between two prefills, on servers without mixed batches.

SGLang prefills for as long as prompts wait, and running requests wait for all of them. Its flag
``--prefill-decode-interval`` prevents that, and SGLang sets it by itself for other models. Here it is set for Gemma
4.
"""

from typing import Any

from sglang_gemma4.patching import takes, tell, uses
from sglang_gemma4.speculative import beside_bounds

NAME = "prefill_turns"
STEPS = 1
"""Decode steps after a prefill. Larger numbers were not compared."""


def set_interval(server_args: Any) -> None:
    """Before ``default_unset_prefill_decode_interval``, which sets 0 where no one has set anything."""
    from sglang.srt.arg_groups.model_override_base import model_config_of, resolving_view
    from sglang.srt.arg_groups.overrides import declare_resolution

    given = resolving_view(server_args)
    text = model_config_of(server_args).hf_text_config
    if not getattr(text, "num_kv_shared_layers", 0) or uses.mixes_as_asked(given):
        return
    if not takes(NAME, reason(given)):
        return
    declare_resolution(server_args, f"sglang_gemma4_{NAME}", prefill_decode_interval=STEPS)
    tell(NAME, f"--prefill-decode-interval {STEPS}: after a prefill running requests get a decode step, while prompts wait")


def reason(given: Any) -> str | None:
    """Why SGLang's order stays in force, by the arguments resolved so far (``resolving_view``); or None."""
    if given.prefill_decode_interval is not None:
        return f"--prefill-decode-interval {given.prefill_decode_interval} was given"
    if given.enable_mixed_chunk:
        return "--enable-mixed-chunk: decode rows go through with each prefill"
    if given.disaggregation_mode != "null":
        return f"--disaggregation-mode {given.disaggregation_mode}: prefill and decode are on servers of their own"
    return None if beside_bounds.takes_turns() else "SGLANG_GEMMA4_BESIDE_GAP=throughput: prompts first"
