"""Under MTP at topk 1, penalties and min_new_tokens count each token; stock counts one a verify step."""

from sglang_gemma4.patching import Hook, Patch, uses

OURS = "sglang_gemma4.speculative.verify_penalties"
SAMPLING, BATCH = "sglang.srt.sampling", "sglang.srt.managers.schedule_batch.ScheduleBatch"

PATCH = Patch(
    switch="SGLANG_GEMMA4_VERIFY_RULES",
    why="Verify counts the last token of an accepted run alone, no drafts before a node, and steps for min_new_tokens: other answers "
    "than plain decoding's.",
    evidence="srt/managers/schedule_batch.py:3720 · speculative/eagle_utils.py:562-582 · sampling/penaltylib/min_new_tokens.py:83",
    remove_when="SGLang's verify penalises each node by the tokens before it.",
    uses=(uses.mtp,),
    hooks=(
        Hook(
            f"{SAMPLING}.penaltylib.orchestrator.BatchedPenalizerOrchestrator.__init__", "after", f"{OURS}:after_penalizers", "b475938daa5a"
        ),
        Hook(f"{BATCH}.cumulate_penalty_output_tokens", "around", f"{OURS}:count_accepted", "a715a7ca367d"),
        Hook(f"{SAMPLING}.sampling_batch_info.SamplingBatchInfo.copy_for_forward", "around", f"{OURS}:copy_for_forward", "8995338a9aa2"),
        Hook("sglang.srt.speculative.eagle_utils.eagle_sample", "around", f"{OURS}:verify", "b497c62acadc"),
    ),
)
