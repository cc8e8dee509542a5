"""MTP on a disaggregated decode server: the first draft of a request that the prefill server has processed."""

from typing import Any


def frozen_input(received: Any, algorithm: Any, *_args: Any, **_kwargs: Any) -> Any:
    """After ``build_disagg_draft_input``: the frozen draft's input from the EAGLE one that SGLang builds of what the prefill server sent.

    Args:
        received: ``EagleDraftInput`` with ``bonus_tokens`` ``[requests]`` and ``hidden_states`` ``[requests, hidden of the target]``.
    """
    if not algorithm.is_frozen_kv_mtp():
        return None
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
    from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPDraftInput

    made = FrozenKVMTPDraftInput()
    vars(made).update({name: value for name, value in vars(received).items() if name != "spec_input_type"})
    made.capture_hidden_mode = CaptureHiddenMode.LAST
    made.num_tokens_per_req = made.num_tokens_for_logprob_per_req = 1
    return made
