"""Requests are judged in front of the scheduler; one that fails, fails alone."""

from sglang_gemma4.patching import Part, Seam
from sglang_gemma4.serving import admin_routes, client_grammars, isolated_steps, request_checks

MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
CONTROL = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
BACKEND = "sglang.srt.constrained.base_grammar_backend.BaseGrammarBackend"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
DETOKENIZE = "sglang.srt.entrypoints.openai.serving_tokenize.OpenAIServingDetokenize"

PARTS = (
    Part(
        name="request_values",
        does="Values that no tensor can hold, ids outside the vocabulary and SGLang's own fields get a 400 before the scheduler.",
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="Stock passes ids, counts and types to the scheduler unchecked. One request can end the scheduler: by an id outside the "
        "vocabulary, top_k 2147483648 or 5,000 top_logprobs. A negative logprob_start_len or a list in place of a number does so too. n "
        "1000000, or a stop_regex that backtracks, blocks the answers of all clients.",
        evidence="srt/sampling/sampling_batch_info.py:147 · sampling/penaltylib/min_new_tokens.py:65 · "
        "layers/logprob_processor.py:106 · managers/tokenizer_manager.py:3228 · managers/schedule_batch.py:1940 · "
        "session/session_controller.py:223 · crash_repro/request_values.py",
        remove_when="SGLang checks each field's type and range before it sends a request to the scheduler.",
    ),
    Part(
        name="admin_routes",
        does="No administrative route ends or blocks the server: a request that cannot be done gets status 400 and the reason.",
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="Every exception in a handler of stock's scheduler ends the server. Examples are GET /start_expert_distribution_record "
        "without a key or a body, and /release_memory_occupation without a memory saver. Others are /start_profile with a folder that "
        "cannot be made, and /update_weights_from_disk with an unknown format. /slow_down with 1e6 s blocks the server; a wrong log "
        "level makes every later request a 500. With --admin-api-key alone, /server_info is open and shows that key.",
        evidence="srt/managers/scheduler.py:2256 (_request_dispatcher, not guarded) · eplb/expert_distribution.py:204 · "
        "managers/scheduler_components/weight_updater.py:350 · utils/request_logger.py:237 · crash_repro/admin_routes.py",
        remove_when="SGLang answers an administrative request that fails with an error message.",
    ),
    Part(
        name="input_embeds",
        does="Prompts given as embeddings are served, also next to other prompts, in the model's type; stock's scheduler ends.",
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="SGLang's documentation offers input_embeds with --disable-radix-cache. There the first such request ends the scheduler: the "
        "forward gets ids and embeddings, and refuses both together. In float32 the embeddings have another type. In a batch with a "
        "request of ids there are fewer rows than tokens.",
        evidence="srt/models/gemma4_mm.py:655 · models/gemma4_causal.py:1035 · model_executor/model_runner.py:1772 (bfloat16) · "
        "managers/schedule_batch.py:2935 · crash_repro/input_embeds.py",
        remove_when="SGLang's Gemma 4 accepts input_embeds in batches with ids and embeddings.",
    ),
    Part(
        name="client_grammars",
        does="A client's grammar that crashes or takes too much time or memory is a 400; compiled ones are kept within a limit.",
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="A grammar of a few kB can take stock's scheduler minutes and gigabytes to compile. Examples are a JSON schema nested 1,000 "
        "deep, and '.*' 1,000 times. Others take some 100 ms per token of the answer, and all other requests wait. A grammar with a rule "
        "that nothing can begin leaves an answer without a next token. Stock keeps everything that it ever compiled.",
        evidence="srt/constrained/base_grammar_backend.py:267 (cache), xgrammar_backend.py:257 (cache_limit_bytes) · "
        "crash_repro/client_grammars.py · tests/unit/test_client_grammars.py",
        remove_when="SGLang compiles clients' grammars within a limit of time and memory, and bounds its caches.",
    ),
    Part(
        name="isolation",
        does="A request that raises inside a scheduler step ends alone, with status 400 or 500; the others continue.",
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="If one request's data raises in a tower, an embedding, a grammar or a sampler, stock's scheduler ends. Every other client's "
        "request ends with it.",
        evidence="srt/managers/scheduler.py:6355 (any exception in the loop sends SIGQUIT to the server) · crash_repro/failed_forward.py",
        remove_when="SGLang answers a request that fails in a step and continues.",
    ),
)

SEAMS = (
    Seam(f"{MANAGER}.generate_request", "before", request_checks.judge, "fbc3cc5da441", parts=("request_values",), pins="signature"),
    Seam(
        f"{MANAGER}._validate_one_request",
        "before",
        request_checks.judge_positions,
        "40d2f74c5160",
        parts=("request_values",),
        pins="signature",
    ),
    Seam(
        f"{MANAGER}._send_one_request", "around", request_checks.send_in_turn, "dd859bf5b5a3", parts=("request_values",), pins="signature"
    ),
    Seam(
        "sglang.srt.entrypoints.http_server.serve_generate_request",
        "around",
        request_checks.judge_fields,
        "4dbe7f4e15a9",
        parts=("request_values",),
    ),
    Seam(
        f"{DETOKENIZE}._handle_non_streaming_request",
        "around",
        request_checks.detokenize,
        "28527ce2f5bc",
        parts=("request_values",),
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.Req._check_str_based_finish",
        "around",
        "sglang_gemma4.serving.stop_patterns:check_in_time",
        "0d44f69b4ad7",
        parts=("request_values",),
    ),
    Seam(
        "sglang.srt.session.session_controller.Session.create_req",
        "before",
        "sglang_gemma4.serving.session_turns:clear_all",
        "3a9cf715ffb3",
        parts=("request_values",),
    ),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler.init_request_dispatcher",
        "after",
        admin_routes.guard_handlers,
        "beb021698fd1",
        parts=("admin_routes",),
    ),
    Seam(
        "sglang.srt.managers.communicator.FanOutCommunicator.__call__",
        "around",
        admin_routes.ask_scheduler,
        "2bd05ded99a7",
        parts=("admin_routes",),
    ),
    Seam(
        f"{MANAGER}.generate_request",
        "before",
        admin_routes.refuse_without_memory,
        "fbc3cc5da441",
        parts=("admin_routes",),
        pins="signature",
    ),
    Seam(f"{MANAGER}.configure_logging", "before", admin_routes.judge_logging, "680ab8e5bd21", parts=("admin_routes",), pins="signature"),
    Seam(f"{CONTROL}._execute_profile", "around", admin_routes.profile, "7f6e8b571956", parts=("admin_routes",)),
    Seam(
        "sglang.srt.utils.common.init_custom_process_group",
        "around",
        "sglang_gemma4.serving.weight_groups:join_in_time",
        "d78ff3928e6d",
        parts=("admin_routes",),
    ),
    Seam(
        "sglang.srt.utils.common.build_server_info",
        "after",
        "sglang_gemma4.serving.hidden_keys:hide_keys",
        "8f76f34f3516",
        parts=("admin_routes",),
    ),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler.get_internal_state",
        "after",
        "sglang_gemma4.serving.hidden_keys:of_state",
        "c232ee9621fe",
        parts=("admin_routes",),
    ),
    Seam(
        "sglang.srt.entrypoints.http_server._setup_and_run_http_server",
        "before",
        admin_routes.warn_if_open,
        "744747695aae",
        parts=("admin_routes",),
        pins="signature",
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend",
        "after",
        "sglang_gemma4.models.given_embeddings:keep_rows",
        "fa20f429824a",
        parts=("input_embeds",),
    ),
    Seam(
        "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs",
        "around",
        "sglang_gemma4.models.given_embeddings:set_aside",
        "59f4141fb13c",
        parts=("input_embeds",),
    ),
    Seam(
        "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration.forward",
        "around",
        "sglang_gemma4.models.given_embeddings:write_over",
        "072bd23683f7",
        parts=("input_embeds",),
    ),
    Seam(
        "sglang.srt.models.gemma4_causal.Gemma4ForCausalLM.forward",
        "around",
        "sglang_gemma4.models.given_embeddings:write_over",
        "1d0366f7fa47",
        parts=("input_embeds",),
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_and_resolve_lora",
        "around",
        client_grammars.try_first,
        "2fab5ee4bb63",
        parts=("client_grammars",),
    ),
    Seam(
        "sglang.srt.entrypoints.http_server._setup_and_run_http_server",
        "before",
        client_grammars.prepare,
        "7b68d6a8a809",
        parts=("client_grammars",),
    ),
    Seam(f"{BACKEND}.set_cache", "after", client_grammars.bound_compiled, "e3e22883a394", parts=("client_grammars",)),
    Seam(f"{BACKEND}.reset", "after", client_grammars.forget_sizes, "272675363e87", parts=("client_grammars",)),
    Seam(
        "sglang.srt.constrained.xgrammar_backend.XGrammarGrammarBackend.__init__",
        "after",
        client_grammars.bound_compiler,
        "0286ace54428",
        parts=("client_grammars",),
    ),
    Seam(f"{SCHEDULER}.event_loop_normal", "around", isolated_steps.keep_going, "e1b4f1cdca2d", parts=("isolation",)),
    Seam(f"{SCHEDULER}.event_loop_overlap", "around", isolated_steps.keep_going, "a6c1681f722a", parts=("isolation",)),
    Seam(f"{SCHEDULER}.get_next_batch_to_run", "around", isolated_steps.schedule, "9c5ef6348963", parts=("isolation",)),
    Seam(f"{SCHEDULER}.run_batch", "around", isolated_steps.run, "c314c0d4b02c", parts=("isolation",)),
    Seam(f"{SCHEDULER}.launch_batch_sample_if_needed", "around", isolated_steps.sample, "42b9fcbba9e1", parts=("isolation",)),
    Seam(f"{SCHEDULER}.process_batch_result", "around", isolated_steps.process, "a67c683e5347", parts=("isolation",)),
    Seam(
        f"{SCHEDULER}.handle_generate_request",
        "around",
        "sglang_gemma4.serving.failed_requests:refuse_if_broken",
        "d247ea868856",
        parts=("isolation",),
    ),
    Seam(
        f"{SCHEDULER}.handle_embedding_request",
        "around",
        "sglang_gemma4.serving.failed_requests:refuse_if_broken",
        "0f81da81e628",
        parts=("isolation",),
    ),
)
