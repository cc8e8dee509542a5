"""MTP runs behind a prefill server (--disaggregation-mode); stock's servers crash at the first request."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses


def recurrent_hidden(original: Callable[[Any, Any], Any], model_config: Any, algorithm: Any) -> Any:
    """Around ``get_draft_recurrent_hidden_state_spec_from_config``: width and dtype of what a draft step hands to the next."""
    width, dtype = original(model_config, algorithm)
    if not algorithm.is_frozen_kv_mtp():
        return width, dtype
    return int(getattr(model_config.hf_config, "backbone_hidden_size", width)), dtype


def without_draft_pool(_queue: Any, *args: Any, **kwargs: Any) -> Any:
    """Before the queues' constructors, which the scheduler calls by keywords: a frozen draft's pool of 64 slots holds nothing to send."""
    if kwargs["scheduler"].spec_algorithm.is_frozen_kv_mtp():
        kwargs["draft_token_to_kv_pool"] = None
    return (_queue, *args), kwargs


SEED = "sglang_gemma4.speculative.disaggregated:frozen_input"
WIDTH = "sglang.srt.speculative.eagle_utils.get_draft_recurrent_hidden_state_spec_from_config"

PATCH = Patch(
    switch="SGLANG_GEMMA4_FROZEN_VIEWS",
    why="Stock sizes the hidden state on the wire by the assistant, registers the draft's 64 slots under the target's pages and builds "
    "EAGLE's draft input: neither server of a pair runs MTP.",
    evidence="srt/speculative/eagle_utils.py:279 · managers/scheduler.py:1534 · speculative/eagle_disaggregation.py:124 · "
    "frozen_kv_mtp_worker_v2.py:465",
    remove_when="tests/engine/test_mtp_disaggregated.py passes with SGLANG_GEMMA4_WITHOUT=pd_draft.",
    uses=(uses.mtp, uses.disaggregation),
    hooks=(
        Hook(WIDTH, "around", recurrent_hidden, "48156b3f742c"),
        Hook("sglang.srt.disaggregation.prefill.PrefillBootstrapQueue.__init__", "before", without_draft_pool, "657c3d190268"),
        Hook("sglang.srt.disaggregation.decode.DecodePreallocQueue.__init__", "before", without_draft_pool, "62394cb3ba75"),
        Hook("sglang.srt.speculative.spec_info.SpeculativeAlgorithm.build_disagg_draft_input", "after", SEED, "9d1bebb772bb"),
    ),
)
