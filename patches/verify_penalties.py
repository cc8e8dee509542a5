"""Under MTP at topk 1, penalties and min_new_tokens count each token; stock counts one a verify step."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch

MARK = "_sglang_gemma4_counted"


def begin(_result: None, orchestrator: Any, *args: Any, **kwargs: Any) -> None:
    """After ``BatchedPenalizerOrchestrator.__init__``. Scaling comes last, as in SGLang's sums: elsewhere stock's order is a set's."""
    orchestrator.penalizers = dict(sorted(orchestrator.penalizers.items(), key=lambda item: item[1].is_multiplicative))
    if not orchestrator.is_required:
        return
    from sglang_gemma4.speculative import verify_penalties

    batch = orchestrator.batch
    if verify_penalties.is_ours(batch):
        verify_penalties.begin(orchestrator, batch)


def count(original: Callable[[Any], None], batch: Any) -> None:
    """Around ``cumulate_penalty_output_tokens``, which is called only where a request of the batch has penalties."""
    from sglang_gemma4.speculative import verify_penalties

    if verify_penalties.is_ours(batch):
        verify_penalties.count(batch.sampling_info.penalizer_orchestrator, batch.reqs)
    else:
        original(batch)


def for_forward(original: Callable[[Any], Any], info: Any) -> Any:
    """Around ``copy_for_forward``: of a verify."""
    orchestrator = info.penalizer_orchestrator
    if not orchestrator.is_required or not orchestrator.batch.forward_mode.is_decode():
        return original(info)
    from sglang_gemma4.speculative import verify_penalties

    batch = orchestrator.batch
    return verify_penalties.for_forward(info, batch.reqs) if verify_penalties.is_ours(batch) else original(info)


def verify(original: Callable[..., Any], verify_input: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``eagle_sample``."""
    if getattr(batch.sampling_info, MARK, None) is None:
        return original(verify_input, batch, *args, **kwargs)
    from sglang_gemma4.speculative import verify_penalties

    return verify_penalties.verify(original, verify_input, batch, *args, **kwargs)


PATCH = Patch(
    switch="SGLANG_GEMMA4_VERIFY_RULES",
    why="Verify counts the last token of an accepted run alone, no drafts before a node, and steps for min_new_tokens: other answers "
    "than plain decoding's.",
    evidence="srt/managers/schedule_batch.py:3720 · speculative/eagle_utils.py:562-582 · sampling/penaltylib/min_new_tokens.py:83",
    remove_when="SGLang's verify penalises each node by the tokens before it.",
    uses=(uses.mtp,),
    hooks=(
        Hook("sglang.srt.sampling.penaltylib.orchestrator.BatchedPenalizerOrchestrator.__init__", "after", begin, "b475938daa5a"),
        Hook("sglang.srt.managers.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens", "around", count, "a715a7ca367d"),
        Hook("sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.copy_for_forward", "around", for_forward, "8995338a9aa2"),
        Hook("sglang.srt.speculative.eagle_utils.eagle_sample", "around", verify, "b497c62acadc"),
    ),
)
