"""The FROZEN_KV_MTP worker pair: views of the target's KV, drafts, the draft's graph and length."""

from sglang_gemma4.diagnostics import unified_draft
from sglang_gemma4.patching import Part, Seam, resolution_step, uses
from sglang_gemma4.patching.switches import MTP_V2
from sglang_gemma4.speculative import frozen_chain, workers

WORKER_V2 = "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPWorkerV2"
SPECULATIVE_STEP = "handle_speculative_decoding"
GRAPHS = "sglang.srt.speculative.frozen_kv_mtp_cuda_graph_runner.FrozenKVMTPCudaGraphRunner"
BACKEND = "sglang.srt.layers.attention.base_attn_backend.AttentionBackend"
AUX_HIDDEN_STATE = "sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state"
MEMORY_STEP = "handle_unified_memory_pool"
CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"
DRAFT_WORKER = "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker"

PARTS = (
    Part(
        name="sync_mtp",
        does="MTP runs with --disable-overlap-schedule; stock crashes at the first batch.",
        switch="SGLANG_GEMMA4_FROZEN_VIEWS",
        why="The synchronous loop passes pp_proxy_tensors, which the frozen-KV worker does not accept: TypeError at the first batch.",
        evidence="srt/managers/scheduler.py:4829 · srt/speculative/frozen_kv_mtp_worker_v2.py:762 (EAGLE accepts it: "
        "eagle_worker_v2.py:1421)",
        remove_when="FrozenKVMTPWorkerV2.forward_batch_generation accepts pp_proxy_tensors.",
        uses=(uses.mtp, uses.synchronous),
    ),
    Part(
        name="worker_v1",
        does="MTP runs in a synchronous worker (v1): simple and slower, the reference for v2 and the safe mode.",
        switch=MTP_V2,
        at=False,
        why="SGLang has one MTP worker, which is built for overlap. There is no simple worker to check its results against, and none to "
        "fall back on.",
        evidence="srt/speculative/spec_info.py:346 · srt/managers/scheduler.py:4829",
        remove_when="No test compares MTP with a simple loop, and no operator needs one.",
        uses=(uses.mtp,),
    ),
    Part(
        name="frozen_views",
        does="The MTP draft sees all of the target's KV on every attention backend, or the start is refused.",
        switch="SGLANG_GEMMA4_FROZEN_VIEWS",
        why="Stock's views swap only the pool. fa4 then reads wrong pages in sliding layers, and a pair of backends still reads the "
        "draft's own pool.",
        evidence="srt/speculative/frozen_kv_mtp_utils.py:51-104 · models/gemma4_mtp.py:140 (no scales) · "
        "layers/attention/flashattention_backend.py:212 · hybrid_attn_backend.py:38",
        remove_when="SGLang's views swap what backends derive from their pool.",
        uses=(uses.mtp,),
    ),
    Part(
        name="unified_draft",
        does="MTP runs on SGLang's unified memory, whose split between full and sliding layers follows the load.",
        switch="SGLANG_GEMMA4_FROZEN_VIEWS",
        why="Stock refuses FROZEN_KV_MTP with --enable-unified-memory. The draft owns no KV, yet stock would give it a pool as large as "
        "the virtual space. It would also give the draft virtual slots in place of physical ones.",
        evidence="srt/arg_groups/kv_cache_hook.py:588 · mem_cache/kv_cache_configurator.py:1413 (refused), 701 (its pool) · "
        "mem_cache/kv_index_translator.py:138 · crash_repro/unified_memory.py",
        remove_when="SGLang's unified memory supports FROZEN_KV_MTP.",
        uses=(uses.mtp, uses.unified_memory),
    ),
    Part(
        name="frozen_chain",
        does="At topk 1 each MTP draft token is an argmax, and the host waits for nothing in a step.",
        switch="SGLANG_GEMMA4_FROZEN_CHAIN",
        why="Stock waits for the device in every draft (a sum of lengths). It computes softmax, cat, topk, sort and gather to find one "
        "maximum.",
        evidence="srt/speculative/frozen_kv_mtp_worker_v2.py:479, 592, 604-645, 686 · frozen_kv_mtp_utils.py:155 · steps are 3 to 13 % "
        "shorter on an H200, together with draft_graph and shared_query, runs/2026-11-21-26b-mtp-v2; tokens and accept length equal "
        "stock's",
        remove_when="SGLang's frozen draft has EAGLE's topk=1 path and preallocated masks.",
        declines=frozen_chain.not_under_v1,
        uses=(uses.mtp,),
    ),
    Part(
        name="draft_argmax",
        does="One kernel computes the draft's head and the argmax over it, without logits in memory.",
        switch="SGLANG_GEMMA4_FROZEN_CHAIN",
        why="A draft step needs one token. Stock writes bf16 logits, their float32 copy and, for E2B and E4B, copies of the chosen rows.",
        evidence="srt/models/gemma4_mtp.py:293-326 · srt/layers/logits_processor.py:1039 · runs/2026-11-21-26b-mtp-v2 (logits: 22 to 140 "
        "µs) · the kernel alone is 1.1 to 1.7 times as fast as the chain, also for the centroid head · H200, 26B-A4B, MTP steps against "
        "the package without it: 0.5 % shorter at batch 1 and at 8, 0.8 % at 32 and at 64 (three repetitions, ranges overlap at 32), "
        "runs/2026-11-23-26b-later-pieces",
        remove_when="SGLang's frozen draft takes its token from a fused head.",
        declines=frozen_chain.not_under_v1,
        uses=(uses.mtp, uses.kernels),
    ),
    Part(
        name="draft_graph",
        does="The draft's attention metadata is computed inside its CUDA graph (topk 1, triton).",
        switch="SGLANG_GEMMA4_FROZEN_CHAIN",
        why="Before each replay of the draft's graph, stock launches the draft's metadata kernels one by one. The graph could contain "
        "them.",
        evidence="srt/speculative/frozen_kv_mtp_worker_v2.py:353-378 · frozen_kv_mtp_cuda_graph_runner.py:325-335 (triton's hook is "
        "empty) · never timed by itself",
        remove_when="SGLang's triton backend prepares decode metadata in init_forward_metadata_in_graph.",
        declines=frozen_chain.not_under_v1,
        uses=(uses.mtp, uses.triton_decode, uses.decode_graphs),
    ),
    Part(
        name="mamba_check",
        does="MTP steps do not check the model's config again to see that there are no recurrent states to commit.",
        switch="SGLANG_GEMMA4_FROZEN_CHAIN",
        why="In stock each step checks whether the model belongs to one of four hybrid families, through transformers' slow config "
        "attributes.",
        evidence="srt/speculative/spec_utils.py:1025 · srt/configs/hybrid_arch.py:145 · 7.8 % of the host's own work in a step, sampled "
        "on a CPU; a call takes less than 1 µs there with the patch, without it 117 µs, runs/2026-11-27-cpu-host-step",
        remove_when="SGLang stores mambaish_config in the model runner.",
        uses=(uses.mtp,),
    ),
    Part(
        name="adaptive_draft",
        does="--speculative-adaptive works for MTP: each batch size gets the draft length (0 too) that measures fastest.",
        switch="SGLANG_GEMMA4_FROZEN_VIEWS",
        why="MTP has one draft length for every batch size. It costs more than plain decoding if batches are large or drafts are refused.",
        evidence="srt/speculative/adaptive_spec_params.py:65 · frozen_kv_mtp_worker_v2.py:741 · runs/2026-11-21-26b-stock-steps "
        "(batch 64: 0.93x) · H200, every draft refused: 1.5 to 3.7 % slower than the package without a draft at batch 1 to 64, "
        "runs/2026-11-22-26b-adaptive-refused, up to 4.4 % just after a start, runs/2026-11-22-26b-step-switches · drafts accepted: no "
        "slower, runs/2026-11-22-26b-adaptive-accepted",
        remove_when="SGLang's adaptive speculation supports FROZEN_KV_MTP and weighs the cost of a step.",
        uses=(uses.mtp, uses.adaptive),
    ),
    Part(
        name="draft_budget",
        does="The MTP draft, which owns no KV, takes no share of the KV pools.",
        switch="SGLANG_GEMMA4_POOL_SIZES",
        why="FROZEN_KV_MTP counts as EAGLE, so its draft's layers are counted as KV of the target's size. Yet the draft's pool has 64 "
        "tokens. The loss is 8% of 26B-A4B's capacity at ratio 0.8, and 24% at 0.15.",
        evidence="srt/speculative/spec_info.py:102 · srt/model_executor/pool_configurator.py:733-759 · frozen_kv_mtp_worker_v2.py:194",
        remove_when="pool_configurator.py leaves FROZEN_KV_MTP out of the draft layers it counts.",
        uses=(uses.mtp,),
    ),
)

SEAMS = (
    Seam(
        f"{WORKER_V2}.forward_batch_generation",
        "around",
        "sglang_gemma4.speculative.synchronous:take_pipeline_argument",
        "4f069803c80c",
        parts=("sync_mtp",),
    ),
    Seam(
        "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker",
        "around",
        workers.choose_worker,
        "4e60c21796d7",
        parts=("worker_v1",),
    ),
    resolution_step(SPECULATIVE_STEP, workers.switch_overlap_off, parts=("worker_v1",)),
    Seam(
        "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker._frozen_kv_target_view",
        "replace",
        workers.metadata_view,
        "4d7b6002f487",
        parts=("frozen_views",),
    ),
    Seam(
        "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker._target_kv_pool_view",
        "replace",
        workers.pool_view,
        "f9634b22a2ca",
        parts=("frozen_views",),
    ),
    Seam(
        "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker._bind_kv_context",
        "after",
        workers.share_scales,
        "c5a5a7de99ea",
        parts=("frozen_views",),
    ),
    Seam(
        "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker._init_draft_attn_backend",
        "after",
        workers.prepare_backend,
        "521cbe95ce3b",
        parts=("frozen_views", "draft_graph"),
    ),
    Seam(f"{GRAPHS}.__init__", "around", workers.capture_in_view, "e3328ffbb683", parts=("frozen_views",)),
    resolution_step(MEMORY_STEP, unified_draft.accept_draft, parts=("unified_draft",)),
    Seam(
        f"{CONFIGURATOR}._fused_draft_decision",
        "around",
        "sglang_gemma4.speculative.unified_pool:nothing_fused",
        "eb756d41c49a",
        parts=("unified_draft",),
    ),
    Seam(
        f"{CONFIGURATOR}._fused_draft_for_swa_factory",
        "around",
        "sglang_gemma4.speculative.unified_pool:no_placement",
        "d52bffb8a775",
        parts=("unified_draft",),
    ),
    Seam(
        f"{CONFIGURATOR}._init_pools",
        "around",
        "sglang_gemma4.speculative.unified_pool:own_small_pool",
        "62699bb38a23",
        parts=("unified_draft",),
    ),
    Seam(
        f"{DRAFT_WORKER}.alloc_memory_pool",
        "after",
        workers.prepare_draft,
        "e8840b2af3a4",
        parts=("unified_draft", "frozen_chain", "draft_argmax"),
    ),
    Seam(f"{DRAFT_WORKER}.draft", "around", frozen_chain.draft, "1aa5d861ae2f", parts=("frozen_chain",)),
    Seam(f"{DRAFT_WORKER}.draft_forward", "around", frozen_chain.draft_forward, "48bb364eba9f", parts=("frozen_chain",)),
    Seam(
        f"{DRAFT_WORKER}._draft_extend_for_decode",
        "around",
        frozen_chain.seed_after_verify,
        "4618122357e3",
        parts=("frozen_chain",),
    ),
    Seam(
        "sglang.srt.models.gemma4_mtp.Gemma4AssistantForCausalLM._apply_centroid_masking",
        "around",
        frozen_chain.centroid_head,
        "86c29c92cbe5",
        parts=("frozen_chain",),
    ),
    Seam(
        f"{DRAFT_WORKER}._select_last_extend_hidden",
        "around",
        frozen_chain.select_last,
        "59a5bd6d53bd",
        parts=("frozen_chain",),
    ),
    Seam(
        "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker._init_frozen_kv_metadata_replay_cuda_graph",
        "around",
        workers.replayed_with_graph,
        "a7db27606ada",
        parts=("draft_graph",),
    ),
    Seam(f"{BACKEND}.init_forward_metadata_in_graph", "after", workers.capture_metadata, "4c2e618dd4b6", parts=("draft_graph",)),
    Seam(
        "sglang.srt.speculative.spec_utils.commit_mamba_states_after_verify",
        "around",
        workers.commit,
        "7e91ea9825ac",
        parts=("mamba_check",),
    ),
    Seam(
        "sglang.srt.speculative.adaptive_spec_params.adaptive_unsupported_reason",
        "around",
        workers.unsupported_reason,
        "2e315677f2a5",
        parts=("adaptive_draft",),
    ),
    Seam(
        "sglang.srt.arg_groups.speculative_hook._init_adaptive_speculative_params",
        "before",
        workers.default_config,
        "71f4c15ae339",
        parts=("adaptive_draft",),
    ),
    Seam(
        "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker",
        "replace",
        "sglang_gemma4.speculative.adaptive:AdaptiveDraftWorker",
        "cda3a2335b40",
        parts=("adaptive_draft",),
    ),
    Seam(
        "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPWorkerV2",
        "replace",
        "sglang_gemma4.speculative.adaptive:AdaptiveWorker",
        "3c1bb35d4ea7",
        parts=("adaptive_draft",),
    ),
    Seam(f"{AUX_HIDDEN_STATE}._resolve_eagle_aux_hidden_state", "after", workers.charge_no_draft, "38b66d834462", parts=("draft_budget",)),
)
