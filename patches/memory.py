"""Pools of KV: their sizes, what is admitted to them, and their end."""

from functools import partial

from sglang_gemma4.diagnostics import pool_hit_counts
from sglang_gemma4.memory import memory_reserve, pools
from sglang_gemma4.patching import Entry, Part, Seam, uses

CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"
REGISTRY = "sglang.srt.arg_groups.overrides._MODEL_OVERRIDE_FNS"
BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch"
REPORTER = "sglang.srt.managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter"
LAYER_SETUP = "sglang.srt.model_executor.model_runner_components.layer_setup"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
ALLOCATOR = "sglang.srt.mem_cache.allocator"
COLLECTOR = "sglang.srt.observability.metrics_collector.SchedulerMetricsCollector"
CONFIGURATOR_MODULE = "sglang.srt.mem_cache.kv_cache_configurator"

PARTS = (
    Part(
        name="memory_reserve",
        does="The memory reserve is calculated on request or if SGLang's leaves no pool; unused memory is reported.",
        switch="SGLANG_GEMMA4_POOL_SIZES",
        why="SGLang reserves 1.5 MB per token of a chunk and 9 % of the GPU for the vision tower. For 26B-A4B this is 18.9 GiB of 80 GB, "
        "of which five runs used 2 to 5 GiB, and nothing reports this. 31B's weights leave no memory for KV after this reserve, and the "
        "start fails.",
        evidence="srt/arg_groups/memory_hook.py:281, 417 · kv_cache_configurator.py:3043 · sglang_gemma4/memory/reserve.py, peaks of 5 "
        "runs · runs/2026-11-25-26b-h100-reserve: 79.26 of 79.6 GiB were used, so the calculated reserve applies only if SGLang's own "
        "leaves no pool for a request, or with SGLANG_GEMMA4_RESERVE_GIB=auto or a number of GiB",
        remove_when="SGLang sizes KV by the memory that is free after its graphs are captured, for these models too.",
        uses=(uses.kernels,),
    ),
    Part(
        name="feature_memory",
        does="Image features on the GPU are charged to the memory reserve, not to the KV pools.",
        switch="SGLANG_GEMMA4_POOL_SIZES",
        why="With image features on the GPU, KV had 2.3 GiB less than stock's at the same --mem-fraction-static. On an H100 at 0.85 it "
        "had 14.5 GiB (stock: 16.9 GiB). The features' pool and its process' context exist before the weights, and SGLang subtracts the "
        "pool's bytes from KV again.",
        evidence="srt/mem_cache/kv_cache_configurator.py:202, 3007-3038 · entrypoints/engine.py:1339 · runs/2026-11-28-26b-h100-cells: "
        "62,004 sliding tokens ran 100 requests of 500 + 300 at once (stock: 72,108 tokens, 112 requests) · more memory stays free than "
        "the 7.7 GiB with which runs/2026-11-26-26b-h100-peer passed at 0.9",
        remove_when="SGLang counts memory that another of its processes holds as used.",
        uses=(uses.images, uses.kernels),
    ),
    Part(
        name="swa_ratio",
        does="MoE models whose pools are sized by a ratio get a sliding pool of 0.15 of the full one (SGLang: 0.8).",
        switch="SGLANG_GEMMA4_POOL_SIZES",
        why="The sliding layers of MoE Gemma 4 take ten times the bytes of its full layers. With a ratio of 0.8 it has 3.6x fewer tokens "
        "of context.",
        evidence="srt/arg_groups/fields/schedule.py:150 · pool_configurator.py:801 · runs/2026-11-21-26b-swa-ratio · many concurrent "
        "requests below 10,000 tokens may run short of sliding slots (`sglang-gemma4 capacity`)",
        remove_when="SGLang itself sizes Gemma 4's pools by window and concurrency.",
        uses=(uses.moe,),
    ),
    Part(
        name="swa_sizing",
        does="The sliding pool is sized by running requests and window; the full pool gets the rest.",
        switch="SGLANG_GEMMA4_POOL_SIZES",
        why="The number of running requests bounds what they hold of the sliding pool. A ratio to the full pool does not follow that "
        "number.",
        evidence="srt/model_executor/pool_configurator.py:801, 924 (by requests only if there is no radix cache) · "
        "sglang_gemma4/memory/swa_sizing.py",
        remove_when="SWARequestCapPoolConfigurator works with the radix cache and without --max-running-requests.",
    ),
    Part(
        name="own_window",
        does="A running request holds one sliding window; its prompt's is freed if memory is short or the request passed it.",
        switch="SGLANG_GEMMA4_POOL_SIZES",
        why="The radix tree keeps a prompt's last window locked until its request ends, in addition to the window of the request's own "
        "tokens. This takes twice the sliding pool, then causes retractions. SGLANG_OPT_RELEASE_PREFILL_SWA counts steps, not tokens, "
        "and does not help answers shorter than a window.",
        evidence="srt/managers/schedule_batch.py:994, 4103 · mem_cache/unified_radix_cache.py:1300 · H100 80 GB, 26B-A4B with MTP, 64 "
        "x 1000/500: 15 retractions · tests/engine/test_one_window.py",
        remove_when="SGLang releases the part of a prompt's window that its request has passed.",
        uses=(uses.radix_cache,),
    ),
    Part(
        name="pool_bound",
        does="The log says which KV pool holds requests back, and which pool sizes would have held more of them.",
        switch="SGLANG_GEMMA4_POOL_SIZES",
        why="The split of the two pools is fixed at the start. SGLang's log and metrics show how full each pool is. They do not show "
        "which pool requests wait for, or what other split would hold more of them.",
        evidence="srt/managers/schedule_policy.py:823 (a refusal names no pool) · schedule_batch.py:3451 · tests/engine/test_pool_bound.py",
        remove_when="SGLang's pools follow the load, or its log says which pool holds requests back.",
        uses=(uses.two_pools,),
    ),
    Part(
        name="stage_layers",
        does="A pipeline stage holds the KV of its own layers.",
        switch="SGLANG_GEMMA4_POOL_SIZES",
        why="Stock looks for a stage's layer range on a class that has none. With --pp-size 2 each stage therefore holds the KV of all "
        "layers.",
        evidence="srt/model_executor/model_runner_components/layer_setup.py:233 · tests/engine/test_parallel_forms.py",
        remove_when="Gemma4ForConditionalGeneration and Gemma4ForCausalLM have start_layer and end_layer.",
        uses=(uses.pipeline,),
    ),
    Part(
        name="shared_kv",
        does="KV-shared layers (E2B: 20 of 35, E4B: 18 of 42) get no KV buffers of their own.",
        switch="SGLANG_GEMMA4_POOL_SIZES",
        why="KV-shared layers never write KV, yet stock gives each of them buffers. E2B wastes the buffers of 20 of 35 layers, E4B of 18 "
        "of 42.",
        evidence="srt/configs/model_config.py:2752 (every layer is listed) · srt/models/gemma4_causal.py:432, 540",
        remove_when="get_hybrid_layer_ids leaves KV-shared layers out.",
        uses=(uses.shared_kv,),
    ),
    Part(
        name="pool_checks",
        does="A pool too small for --context-length or --swa-full-tokens-ratio is refused at start; pools are whole pages.",
        switch="SGLANG_GEMMA4_PREFLIGHT",
        why="Stock starts with a pool smaller than --context-length and then refuses requests one by one.",
        evidence="srt/managers/scheduler.py:2731 (refused at admission) · kv_cache_configurator.py:3174 (no check) · "
        "model_executor/pool_configurator.py:1041 (no rounding to whole pages)",
        remove_when="SGLang compares its pools with the context length at start-up.",
    ),
    Part(
        name="pool_limits",
        does="A request that the KV pools can never hold is a 400 that says why; all others are served to their end.",
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="With pages of more than one token, stock never says that a prompt cannot fit. It returns nothing, or lets the prompt and "
        "all others behind it wait for ever. It does not count the slots that MTP allocates ahead: at the end of a pool, answers are "
        "lost with status 500.",
        evidence="srt/mem_cache/allocator/base.py:88-105 (never None) · managers/schedule_policy.py:951 (a page more) · "
        "managers/schedule_batch.py:3509 (the last request is aborted) · crash_repro/page_pool.py, mtp_pool_end.py · "
        "tests/engine/test_pool_limits.py",
        remove_when="SGLang refuses what its PrefillAdder can never admit, and counts what a speculative step allocates.",
    ),
    Part(
        name="session_slots",
        does="A session's next turn computes the KV that its last token lacks; idle sessions free memory for others.",
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="Under MTP a turn counts its last token as cached, although no step wrote its KV, or continues from tokens past a stop. A "
        "refused turn clears the running turn's mark, and a third turn shares its KV. Retracted turns and idle sessions hold memory for "
        "ever while others wait for it.",
        evidence="srt/session/streaming_session.py:187, 150, 84 · session_controller.py:184 · crash_repro/session_turns.py",
        remove_when="try_cache_finished_req keeps at most finished_len - 1 tokens of an answer, and nothing of a retracted turn.",
    ),
    Part(
        name="pool_hits",
        does="/metrics shows hit rates of both KV pools, evicted windows and windows taken back.",
        switch="SGLANG_GEMMA4_REPORT",
        why="A cached prompt helps only if its last sliding window is cached too. Stock's metrics do not distinguish a prompt that was "
        "never cached from one that lost only its window. They count only evicted full-attention tokens.",
        evidence="srt/mem_cache/unified_cache/components/swa.py:358 (a hit ends where a window is cached) · unified_radix_cache.py:832 · "
        "mem_cache/base_prefix_cache.py:315 · tests/engine/test_pool_hits.py",
        remove_when="SGLang exports hits and evictions of each KV pool.",
        uses=(uses.metrics,),
    ),
)

SEAMS = (
    Seam(
        "sglang.srt.arg_groups.memory_hook.handle_gpu_memory_settings",
        "around",
        memory_reserve.keep_what_is_needed,
        "cc1fe2e7c35e",
        parts=("memory_reserve",),
    ),
    Seam(
        f"{CONFIGURATOR_MODULE}.KVCacheConfigurator._resolve_memory_pool_config",
        "around",
        memory_reserve.size_pools,
        "f54afd8616d9",
        parts=("memory_reserve",),
    ),
    Seam(
        f"{CONFIGURATOR_MODULE}.mm_runtime_reservation_gb",
        "after",
        memory_reserve.keep_no_pool_twice,
        "9272647965da",
        parts=("memory_reserve",),
    ),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler.init_all_cuda_graphs",
        "after",
        memory_reserve.tell_what_is_left,
        "6b42136d843c",
        parts=("memory_reserve",),
        pins="signature",
    ),
    Seam(
        "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._profile_available_bytes",
        "after",
        pools.give_back,
        "9dee439ccf67",
        parts=("feature_memory",),
    ),
    *tuple(
        Entry(REGISTRY, architecture, partial(pools.with_ours, architecture), "0b502f2330da", parts=("swa_ratio",))
        for architecture in ("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4UnifiedForConditionalGeneration")
    ),
    Seam(
        "sglang.srt.model_executor.pool_configurator.create_memory_pool_configurator",
        "around",
        pools.size_by_window,
        "a7ec5a62b327",
        parts=("swa_sizing",),
    ),
    Seam(
        f"{BATCH}.check_decode_mem", "around", "sglang_gemma4.memory.window_pressure:make_decode_fit", "e708e4c0db8f", parts=("own_window",)
    ),
    Seam(
        f"{BATCH}.maybe_evict_swa", "after", "sglang_gemma4.memory.window_pressure:unlock_after_step", "7e8a3752672b", parts=("own_window",)
    ),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler._get_new_batch_prefill_raw",
        "before",
        "sglang_gemma4.memory.window_pressure:make_room",
        "66a87afb5990",
        parts=("own_window",),
    ),
    Seam(
        "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req", "after", pools.note_refusal, "194314fb5aba", parts=("pool_bound",)
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.ScheduleBatch.retract_decode",
        "before",
        pools.note_retraction,
        "02ab71312420",
        parts=("pool_bound",),
    ),
    Seam(f"{REPORTER}.report_decode_stats", "after", pools.look, "f8abd2780e7e", parts=("pool_bound",)),
    Seam(f"{REPORTER}.report_prefill_stats", "after", pools.look, "102fe5dea9cf", parts=("pool_bound",)),
    Seam(
        f"{LAYER_SETUP}._resolve_pp_layer_range",
        "around",
        "sglang_gemma4.memory.stage_layers:own_range",
        "f476010c0ee1",
        parts=("stage_layers",),
    ),
    Seam(
        f"{LAYER_SETUP}._resolve_local_hybrid_swa_layer_ids",
        "after",
        "sglang_gemma4.memory.stage_layers:with_both_types",
        "e1baec5d7048",
        parts=("stage_layers",),
    ),
    Seam(
        f"{LAYER_SETUP}.resolve_layer_indices",
        "after",
        "sglang_gemma4.memory.kv_layers:drop_unread_layers",
        "7d45ac85c73c",
        parts=("shared_kv",),
    ),
    Seam(
        "sglang.srt.managers.cache_controller.storage_model_name",
        "after",
        "sglang_gemma4.memory.kv_layers:name_stored_pages",
        "19f82ce7ca2e",
        parts=("shared_kv",),
    ),
    Seam(
        "sglang.srt.disaggregation.utils.setup_state_kv_args",
        "after",
        "sglang_gemma4.memory.kv_layers:tell_peer",
        "51324cc29389",
        parts=("shared_kv",),
    ),
    Seam(f"{CONFIGURATOR}._resolve_memory_pool_config", "after", pools.check_pool, "f54afd8616d9", parts=("pool_checks",)),
    Seam(
        f"{ALLOCATOR}.base.BaseTokenToKVPoolAllocator.max_new_tokens_for_memory",
        "around",
        "sglang_gemma4.memory.request_limit:most_new_tokens",
        "091d67254dd5",
        parts=("pool_limits",),
    ),
    Seam(
        f"{ALLOCATOR}.unified_hybrid_swa.UnifiedSWATokenToKVPoolAllocator.max_new_tokens_for_memory",
        "around",
        "sglang_gemma4.memory.request_limit:most_new_tokens_of_both",
        "2560d021710a",
        parts=("pool_limits",),
    ),
    Seam(f"{SCHEDULER}.get_init_info", "after", "sglang_gemma4.memory.request_limit:publish", "e9e7f8ba9a31", parts=("pool_limits",)),
    Seam(
        f"{SCHEDULER}.init_req_max_new_tokens",
        "around",
        "sglang_gemma4.memory.request_limit:size_answer",
        "1abc60c57428",
        parts=("pool_limits",),
    ),
    Seam(
        f"{SCHEDULER}._add_request_to_queue",
        "around",
        "sglang_gemma4.memory.request_limit:turn_away",
        "7c44d6152a95",
        parts=("pool_limits",),
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request",
        "after",
        "sglang_gemma4.memory.request_limit:judge",
        "2ad77394d482",
        parts=("pool_limits",),
    ),
    Seam(f"{SCHEDULER}.update_running_batch", "around", "sglang_gemma4.memory.pool_end:decode", "423efd2207bc", parts=("pool_limits",)),
    Seam(
        "sglang.srt.managers.schedule_batch.ScheduleBatch.retract_decode",
        "around",
        "sglang_gemma4.memory.pool_end:retract",
        "02ab71312420",
        parts=("pool_limits",),
    ),
    Seam(
        "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req",
        "after",
        "sglang_gemma4.memory.pool_end:note_refused",
        "194314fb5aba",
        parts=("pool_limits",),
    ),
    Seam(
        "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req_ignore_eos",
        "around",
        "sglang_gemma4.memory.pool_end:admit_by_tokens",
        "e05a8317738b",
        parts=("pool_limits",),
    ),
    Seam(
        "sglang.srt.mem_cache.prefill_budget.SWAPrefillBudget.swa_never_fits",
        "around",
        "sglang_gemma4.memory.pool_end:never_fits",
        "0b09aa306a50",
        parts=("pool_limits",),
    ),
    Seam(
        "sglang.srt.mem_cache.prefill_budget.SWAPrefillBudget.check_prefill",
        "around",
        "sglang_gemma4.memory.pool_end:admit_whole",
        "7953568a2e48",
        parts=("pool_limits",),
    ),
    Seam(
        f"{SCHEDULER}._get_new_batch_prefill_raw",
        "after",
        "sglang_gemma4.memory.pool_end:end_a_standstill",
        "66a87afb5990",
        parts=("pool_limits",),
    ),
    Seam(
        "sglang.srt.session.streaming_session.StreamingSession.try_cache_finished_req",
        "around",
        "sglang_gemma4.memory.session_slots:keep",
        "9b66ca852741",
        parts=("session_slots",),
    ),
    Seam(
        "sglang.srt.session.session_controller.Session.create_req",
        "around",
        "sglang_gemma4.memory.session_slots:create",
        "3a9cf715ffb3",
        parts=("session_slots",),
    ),
    Seam(
        "sglang.srt.mem_cache.common.match_kv_cache",
        "after",
        "sglang_gemma4.diagnostics.pool_hits:matched",
        "1f3b0e2c895c",
        parts=("pool_hits",),
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend",
        "after",
        "sglang_gemma4.diagnostics.pool_hits:admitted",
        "fa20f429824a",
        parts=("pool_hits",),
    ),
    Seam(
        "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache._evict",
        "after",
        "sglang_gemma4.diagnostics.pool_hits:evicted",
        "b6c665124d79",
        parts=("pool_hits",),
    ),
    Seam(f"{COLLECTOR}.emit_constants", "after", pool_hit_counts.add_counters, "adeb97ac459e", parts=("pool_hits",), pins="signature"),
    Seam(f"{COLLECTOR}.log_stats", "after", "sglang_gemma4.diagnostics.pool_hits:logged", "716da99a48aa", parts=("pool_hits",)),
)
