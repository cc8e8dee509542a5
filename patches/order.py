"""Functions of SGLang on which several seams sit: which seam wraps which, and why.

Nothing else decides it: neither the order of modules nor that of their parts. ``sglang-gemma4 patches --by-target`` prints it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shared:
    """A target of several seams, each named by its first part, from the innermost to the outermost.

    An outer seam's ``before`` runs first and its ``after`` last; its ``around`` may leave the inner ones out.
    ``why`` is the reason for the order, or None where any order does the same.
    """

    target: str
    parts: tuple[str, ...]
    why: str | None = None


ORDER = (
    Shared(
        "sglang.srt.managers.scheduler.Scheduler.get_init_info",
        ("report", "start_times", "compile_ahead", "pool_limits"),
        "send_rows copies the patches' rows before keep starts a thread that adds facts; hand_over and publish write keys of their own.",
    ),
    Shared(
        "sglang.srt.server_args.ServerArgs.resolve_once",
        ("mtp_defaults", "preflight", "start_times"),
        "preflight refuses wrong flags before mtp_defaults looks for a draft; start_times counts the time of both as that of arguments.",
    ),
    Shared(
        "sglang.srt.arg_groups.speculative_hook._handle_frozen_kv_mtp",
        ("preflight", "whole_checkpoints"),
        "Both refuse: check_mtp names wrong flags before check_assistant reads the draft's files, and the first refusal is told.",
    ),
    Shared(
        "sglang.srt.arg_groups.model_hook.handle_model_specific_adjustments",
        ("preflight", "kv_formats", "image_masks", "whole_checkpoints"),
        "All four refuse: those that judge flags, formats and backends come before whole_checkpoints, which reads tensors' "
        "headers; the first is told.",
    ),
    Shared(
        "sglang.srt.models.gemma4_causal.Gemma4Attention.forward",
        ("shared_query", "qkv_rope", "attention_groups"),
        "attend keeps batches without rows from both kernels; normed_and_rotated takes shared layers whole, and leaves "
        "queries_only the rest.",
    ),
    Shared(
        "sglang.srt.models.gemma4_causal.Gemma4TextModel.forward",
        ("yoco", "prefill_graph"),
        "capture_body drops the ids that a capture gives beside embeddings; fast_prefill captures only with one of the two.",
    ),
    Shared(
        "sglang.srt.models.gemma4_causal.Gemma4DecoderLayer._next_stream",
        ("layer_tail", "ple_tail", "attention_groups"),
        "attention_groups gathers the residual of all groups first; layer_tail or ple_tail, each for its own layers, then adds to it.",
    ),
    Shared(
        "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req",
        ("one_chunk", "image_masks", "pool_bound", "pool_limits"),
        "note_refusal and note_refused stand outside admit_beside_images and so hear its own NO_TOKEN; be_the_last commutes with it.",
    ),
    Shared(
        "sglang.srt.managers.schedule_policy.PrefillAdder._select_prefill_admission",
        ("host_hits", "image_masks"),
        "fit_beside_images judges the final admission; were host_hits outside, its first try could leave an admitted request "
        "marked as waiting.",
    ),
    Shared(
        "sglang.srt.managers.scheduler.Scheduler.get_next_batch_to_run",
        ("prefill_beside", "isolation"),
        "isolation stands outside prefill_beside, whose choice of a running batch may raise too.",
    ),
    Shared(
        "sglang.srt.managers.scheduler.Scheduler.run_batch",
        ("prefill_beside", "isolation"),
        "isolation reads batch.beside before prefill_beside takes it off, and so knows both halves' requests where one fails.",
    ),
    Shared(
        "sglang.srt.managers.scheduler.Scheduler.process_batch_result",
        ("prefill_beside", "isolation"),
        "isolation reads result.beside and catches both halves; inside prefill_beside it would know one half's requests only.",
    ),
    Shared(
        "sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__",
        ("kv_formats", "image_masks"),
        "mask_triton's ImageAttention wraps the prefill kernel that prepare_triton puts in, and stays outermost, where "
        "begin_triton looks for it.",
    ),
    Shared(
        "sglang.srt.managers.scheduler.Scheduler._get_new_batch_prefill_raw",
        ("image_masks", "own_window", "pool_limits"),
        "refuse_what_never_fits and end_a_standstill may both end one request: whichever stands outside runs last; make_room "
        "runs before both.",
    ),
    Shared(
        "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker._init_draft_attn_backend",
        ("frozen_views", "cpu_engine"),
        "draft_backend stands outside: a CPU backend never reaches refuse_unknown and choose, whose decline of draft_graph "
        "would enter the log.",
    ),
    Shared(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request",
        ("request_values", "admin_routes", "request_media"),
        "All three refuse: judge_addresses' 400 comes before refuse_without_memory's 503, and request_checks:judge's 400 last; "
        "the first is told.",
    ),
    Shared(
        "sglang.srt.entrypoints.openai.serving_tokenize.OpenAIServingDetokenize._handle_non_streaming_request",
        ("request_values", "client_errors"),
        "threaded stands outside, so that request_checks:detokenize's walk over all ids leaves the event loop too; answers are the same.",
    ),
    Shared(
        "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration.load_weights",
        ("quantised_names", "language_model_only", "whole_checkpoints"),
        "whole_checkpoints renames and counts tensors as stored; skip_towers then drops towers by those names, and "
        "quantised_names rewrites the rest.",
    ),
    Shared(
        "sglang.srt.models.gemma4_unified.Gemma4UnifiedForConditionalGeneration.load_weights",
        ("quantised_names", "language_model_only", "whole_checkpoints"),
        "whole_checkpoints renames and counts tensors as stored; skip_towers then drops towers by those names, and "
        "quantised_names rewrites the rest.",
    ),
    Shared(
        "sglang.srt.models.gemma4_causal.Gemma4ForCausalLM.load_weights",
        ("quantised_names", "whole_checkpoints"),
        "whole_checkpoints renames and counts tensors as stored, before quantised_names regroups and dequantises them by those names.",
    ),
    Shared(
        "sglang.srt.utils.common.load_audio",
        ("media_bounds", "media_errors", "message_media"),
        "media_errors rewords what media_bounds raises where it fetches and judges a sound; message_media tries again with "
        "respelled base64.",
    ),
    Shared(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._tokenize_one_request",
        ("request_media", "client_errors"),
        "client_errors:reading_async stands outside, so that what judge_modalities raises over odd values is a 400 too.",
    ),
    Shared(
        "sglang.srt.multimodal.processors.base_processor.BaseMultimodalProcessor.process_and_combine_mm_data_async",
        ("message_media", "request_media"),
        "request_media releases decoded images off the event loop, also where message_media refuses the request.",
    ),
    Shared(
        "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat._process_messages",
        ("message_media", "answer_parser", "tool_grammar", "client_errors", "client_protocols"),
        "judged_chat stands around judge_ids and both after-hooks, so that their errors are a 400; drop_schema runs before "
        "from_first_token.",
    ),
    Shared(
        "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._resolve_memory_pool_config",
        ("memory_reserve", "pool_checks"),
        "check_pool judges the sizes that size_pools settles on; inside it, a try that is thrown away would be warned of.",
    ),
    Shared(
        "sglang.srt.managers.schedule_batch.ScheduleBatch.retract_decode",
        ("pool_bound", "pool_limits"),
        "pool_end:retract may need no retraction; note_retraction stands inside and counts only those that SGLang makes.",
    ),
    Shared(
        "sglang.srt.entrypoints.anthropic.serving.AnthropicServing.handle_messages",
        ("client_errors", "client_protocols"),
        "anthropic:judged writes output_format into the request before off_loop:messages converts the request to a chat request.",
    ),
    Shared(
        "sglang.srt.entrypoints.anthropic.serving.AnthropicServing.handle_count_tokens",
        ("client_errors", "client_protocols"),
        "off_loop:threaded stands inside: anthropic:judged awaits the request's body, and a threaded coroutine may await nothing.",
    ),
    Shared("sglang.srt.observability.metrics_collector.SchedulerMetricsCollector.emit_constants", ("patch_metrics", "pool_hits")),
    Shared("sglang.srt.managers.scheduler.Scheduler.init_tokenizer", ("start_times", "answer_parser")),
    Shared("sglang.srt.model_executor.model_runner.ModelRunner.load_model", ("start_times", "unit_kv_scales", "whole_checkpoints")),
    Shared("sglang.srt.managers.scheduler.Scheduler.init_all_attention_backends", ("start_times", "compile_ahead")),
    Shared("sglang.srt.managers.scheduler.Scheduler.init_all_cuda_graphs", ("start_times", "memory_reserve")),
    Shared("sglang.srt.models.gemma4_causal.Gemma4TextModel.__init__", ("released_memory", "layer_tail")),
    Shared(
        "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager.resume_memory_occupation",
        ("released_memory", "kv_formats"),
    ),
    Shared("sglang.srt.models.gemma4_vision.Gemma4VisionEncoder.__init__", ("attention_groups", "language_model_only")),
    Shared("sglang.srt.models.gemma4_audio.Gemma4AudioEncoder.__init__", ("attention_groups", "language_model_only")),
    Shared(
        "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration.prepare_attn_masks", ("prefill_beside", "image_masks", "cpu_images")
    ),
    Shared("sglang.srt.layers.attention.triton_backend.TritonAttnBackend.init_forward_metadata", ("step_metadata", "image_masks")),
    Shared("sglang.srt.lora.lora_manager.LoRAManager.init_state", ("lora", "cpu_lora")),
    Shared("sglang.srt.disaggregation.utils.setup_state_kv_args", ("hetero_tp", "shared_kv")),
    Shared("sglang.srt.disaggregation.decode.DecodePreallocQueue._ensure_prefill_info", ("hetero_tp", "lost_prefill")),
    Shared("sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request", ("request_values", "pool_limits")),
    Shared("sglang.srt.managers.tokenizer_manager.TokenizerManager._send_one_request", ("request_values", "client_errors")),
    Shared("sglang.srt.session.session_controller.Session.create_req", ("request_values", "session_slots")),
    Shared("sglang.srt.entrypoints.http_server._setup_and_run_http_server", ("admin_routes", "client_grammars", "client_errors")),
    Shared("sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend", ("input_embeds", "pool_hits")),
    Shared(
        "sglang.srt.arg_groups.cuda_graph_hook.disable_breakable_cudagraph_if_incompatible", ("text_only_config", "language_model_only")
    ),
    Shared("sglang.srt.configs.model_config.ModelConfig._config_draft_model", ("untied_head", "gptq_layout")),
    Shared("sglang.srt.utils.common.load_image", ("media_errors", "media_bounds", "message_media")),
    Shared("sglang.srt.utils.common.load_video", ("media_errors", "message_media")),
    Shared(
        "sglang.srt.multimodal.processors.gemma4.Gemma4SGLangProcessor.process_mm_data", ("video_times", "request_media", "message_media")
    ),
    Shared("sglang.srt.multimodal.processors.gemma4.Gemma4SGLangProcessor.__init__", ("media_bounds", "request_media")),
    Shared("sglang.srt.multimodal.processors.gemma4.Gemma4SGLangProcessor.process_mm_data_async", ("request_media", "message_media")),
    Shared("sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat.__init__", ("message_media", "answer_parser")),
    Shared("sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat._apply_jinja_template", ("message_media", "answer_parser")),
    Shared("sglang.srt.function_call.function_call_parser.FunctionCallParser.__init__", ("answer_parser", "tool_grammar")),
    Shared("sglang.srt.entrypoints.openai.serving_responses.OpenAIServingResponses._make_request", ("answer_parser", "client_errors")),
    Shared("sglang.srt.entrypoints.anthropic.serving.AnthropicServing._convert_response", ("answer_parser", "client_protocols")),
)
