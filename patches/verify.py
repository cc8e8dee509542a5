"""From the target's logits to accepted tokens."""

from sglang_gemma4.patching import Entry, Part, Seam, uses
from sglang_gemma4.speculative import acceptance_path

EAGLE = "sglang.srt.speculative.eagle_utils"
BLOCKS = "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2"
DSPARK = "sglang.srt.speculative.dspark_components.dspark_verify.TargetVerifyExecutor"
REQUEST = "sglang.srt.managers.schedule_batch.Req"

PARTS = (
    Part(
        name="verify_penalties",
        does="With chain speculation, penalties and min_new_tokens count every token; stock counts one a step, or none.",
        switch="SGLANG_GEMMA4_VERIFY_RULES",
        why="Stock's verify step counts only the last token of an accepted run, and no drafts before a node. For min_new_tokens it "
        "counts steps. The answers differ from those of plain decoding.",
        evidence="srt/managers/schedule_batch.py:3720 · speculative/eagle_utils.py:562-582 · sampling/penaltylib/min_new_tokens.py:83 · "
        "dflash_utils.py:236 (a name that nothing sets) · tests/engine/test_other_drafters.py",
        remove_when="SGLang's verify step penalises each node by the tokens before it.",
        uses=(uses.speculation,),
    ),
    Part(
        name="verify_cuts",
        does="Under speculation min_p is applied, and top_k and top_p act as in plain sampling.",
        switch="SGLANG_GEMMA4_VERIFY_RULES",
        why="Stock's verify step does not support min-p, and applies top-p to what top-k left. Plain sampling applies both to the whole "
        "softmax.",
        evidence="srt/speculative/eagle_utils.py:724-742 · dflash_utils.py:1037-1103 · srt/layers/sampler.py:407-412, 435-440, 823-834",
        remove_when="SGLang's verify step applies top-k, top-p and min-p as its sampler does.",
        uses=(uses.speculation,),
    ),
    Part(
        name="chain_acceptance",
        does="One launch accepts the tokens of a greedy verify step and prepares the next step's inputs.",
        switch="SGLANG_GEMMA4_FROZEN_CHAIN",
        why="After a verify step's graph, SGLang launches some ten small kernels, from two fills to the relay of lengths and tokens. "
        "They take 0.45 of the 3.2 ms that the host needs for a step of 26B-A4B. On a fast GPU the host's time limits steps of a few "
        "requests.",
        evidence="srt/speculative/eagle_utils.py:631-655, 845 · eagle_worker_common.py:702 · srt/managers/overlap_utils.py:662, 696 · "
        "runs/2026-11-29-26b-h200-int4-host (where the host spends its time) · runs/2026-11-29-e2b-h200-lean, "
        "runs/2026-11-29-26b-h200-int4-lean (with slots_ahead; on that GPU's host the one launch takes 76 µs, SGLang's launches and the "
        "making of their inputs 416 µs)",
        remove_when="SGLang accepts a chain inside the verify graph, as it does for DSpark.",
        uses=(uses.mtp, uses.kernels),
    ),
    Part(
        name="stop_order",
        does="Under speculation an answer ends at the earliest stop; stock returns text past it.",
        switch="SGLANG_GEMMA4_VERIFY_RULES",
        why="In an accepted run stock checks stop strings before stop tokens, each in the order given. It then returns text past an "
        "earlier stop.",
        evidence="srt/managers/schedule_batch.py:2023-2036, 1920 · tests/engine/test_mtp_lifecycle.py",
        remove_when="SGLang ends an accepted run at the earliest stop in it.",
        uses=(uses.speculation,),
    ),
)

SEAMS = (
    Seam(
        "sglang.srt.sampling.penaltylib.orchestrator.BatchedPenalizerOrchestrator.__init__",
        "after",
        "sglang_gemma4.speculative.verify_penalties:after_penalizers",
        "b475938daa5a",
        parts=("verify_penalties",),
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens",
        "around",
        "sglang_gemma4.speculative.verify_penalties:count_accepted",
        "a715a7ca367d",
        parts=("verify_penalties",),
    ),
    Seam(
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.copy_for_forward",
        "around",
        "sglang_gemma4.speculative.verify_penalties:copy_for_forward",
        "8995338a9aa2",
        parts=("verify_penalties",),
    ),
    Seam(
        "sglang.srt.speculative.dflash_info_v2.DFlashDraftInputV2.prepare_for_decode",
        "before",
        "sglang_gemma4.speculative.blocks:count_before_step",
        "67aafcdaff2c",
        parts=("verify_penalties",),
    ),
    Seam(
        f"{BLOCKS}._can_skip_verify_logits",
        "around",
        "sglang_gemma4.speculative.blocks:needs_no_logits",
        "1e1a3ff3492d",
        parts=("verify_penalties",),
    ),
    Seam(f"{BLOCKS}._accept_block", "around", "sglang_gemma4.speculative.blocks:verify", "336f01247a34", parts=("verify_penalties",)),
    Seam(
        f"{DSPARK}.accept_and_finalize",
        "around",
        "sglang_gemma4.speculative.dspark_rules:accept",
        "07ff2365976d",
        parts=("verify_penalties",),
    ),
    Seam(
        "sglang.kernels.ops.speculative.dspark.dspark_accept._accept_sampling_core",
        "around",
        "sglang_gemma4.speculative.dspark_rules:with_min_p",
        "4da858f5cbf7",
        parts=("verify_cuts",),
    ),
    Seam(
        "sglang.srt.speculative.dflash_utils.build_speculative_verify_target_probs",
        "around",
        "sglang_gemma4.speculative.blocks:target_probs",
        "6c883dbf0148",
        parts=("verify_cuts",),
    ),
    Seam(
        f"{EAGLE}.eagle_sample",
        "around",
        acceptance_path.sample,
        "b497c62acadc",
        parts=("verify_penalties", "verify_cuts", "chain_acceptance"),
    ),
    Entry(f"{EAGLE}.__dict__", "sampling_softmax", acceptance_path.softmax, "a66ce32877cf", parts=("verify_cuts",)),
    Seam(
        "sglang.srt.managers.overlap_utils.FutureMap.__init__",
        "after",
        "sglang_gemma4.speculative.chain_acceptance:relay_of",
        "d3ba5a033036",
        parts=("chain_acceptance",),
    ),
    Seam(
        "sglang.kernels.ops.speculative.eagle.prepare_verify_commit_outputs",
        "around",
        "sglang_gemma4.speculative.chain_acceptance:commit",
        "85acedeb2fe6",
        parts=("chain_acceptance",),
    ),
    Seam(
        f"{REQUEST}.update_finish_state", "around", "sglang_gemma4.speculative.stops:token_by_token", "4a560c4925da", parts=("stop_order",)
    ),
)
