"""Checkpoints: their configurations, layouts and weights, as they are loaded and updated."""

from sglang_gemma4.diagnostics import whole_checkpoints
from sglang_gemma4.models import loading
from sglang_gemma4.patching import Entry, Kind, Part, Seam, uses

CUDA_GRAPH_HOOK = "sglang.srt.arg_groups.cuda_graph_hook"
UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
ASSISTANT = "sglang.srt.models.gemma4_mtp.Gemma4AssistantForCausalLM"
TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
MODELS = "sglang.srt.models"
CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
SWITCH = "SGLANG_GEMMA4_CONFIGS"

PARTS = (
    Part(
        name="text_only_config",
        does="Text-only checkpoints load as transformers 5.19 saves them.",
        switch="SGLANG_GEMMA4_CONFIGS",
        why="Stock flattens transformers' per_layer_config only under text_config. Gemma4ForCausalLM therefore ends in "
        "AmbiguousGlobalPerLayerAttributeError before any weight is read. On CUDA stock would then capture prefills, and raise where "
        "layers share KV.",
        evidence="srt/utils/hf_transformers/config.py:267 (hasattr raises) · :321 (gemma4_text is not in _GEMMA4_MODEL_TYPES) · "
        "model_executor/model_runner_components/cuda_graph_setup.py:156",
        remove_when="SGLang's get_config flattens a root config of type gemma4_text.",
        uses=(uses.text_only,),
    ),
    Part(
        name="unified_config",
        does="12B checkpoints (Gemma 4 unified) load as transformers 5.19 saves them.",
        switch="SGLANG_GEMMA4_CONFIGS",
        why="Stock reads a 12B's configuration as a Gemma4Config. A file that transformers 5.19 saved then lacks model_patch_size, and "
        "audio and per-layer embeddings get another model's sizes.",
        evidence="srt/utils/hf_transformers/common.py:270 · srt/models/gemma4_unified.py:73 · crash_repro/unified_config.py",
        remove_when="SGLang reads gemma4_unified by transformers' own class, or fills in what the file leaves out.",
        uses=(uses.unified,),
    ),
    Part(
        name="untied_head",
        does="A separate LM head is used where transformers uses it: by config.json's top level, and by the weights.",
        switch="SGLANG_GEMMA4_CONFIGS",
        why="Stock asks text_config whether the head is the embedding; the default there is true. If the top level says otherwise, stock "
        "drops the checkpoint's lm_head.weight silently, and every token is wrong.",
        evidence="srt/models/gemma4_mm.py:254 · gemma4_unified.py:190 · gemma4_mtp.py:117 · transformers modeling_utils.py:2484 · "
        "crash_repro/untied_head.py",
        remove_when="SGLang's Gemma 4 models read tie_word_embeddings at the top level.",
    ),
    Part(
        name="router_scale",
        does="The MoE router's scale is applied on every path and follows weight updates.",
        switch="SGLANG_GEMMA4_MODEL_FIXES",
        why="Stock folds the scale into the router once. The fold is stale after the first weight update, and the native norm ignores "
        "it. Experts are then chosen by unscaled logits, without any error.",
        evidence="srt/models/gemma4_causal.py:203-212 · srt/layers/layernorm.py:1425 (forward_native)",
        remove_when="Gemma4Router applies its scale on the native path and refolds it in load_weights.",
        uses=(uses.moe,),
    ),
    Part(
        name="weight_updates",
        does="Weight updates reach the model they are for, also with MTP; an update that fits no model is refused.",
        switch="SGLANG_GEMMA4_WEIGHT_UPDATES",
        why="Stock loads an update's checkpoint into both target and assistant, whose tensor names are equal but whose shapes are not: "
        "the scheduler ends. If weights come in several calls, stock sorts E2B's and E4B's draft head once per call: accept length 1. "
        "Quantised weights, which are rearranged after loading, are partly overwritten.",
        evidence="srt/managers/scheduler_components/weight_updater.py:138, 245 · model_runner_components/weight_updater.py:190, 228 "
        "(falls back to the path that failed) · models/gemma4_mtp.py:380 · crash_repro/mtp_weight_update.py",
        remove_when="SGLang finds out which model a checkpoint is for, and sorts the assistant's head once.",
    ),
    Part(
        name="gptq_layout",
        does="4-bit checkpoints in GPTQ or AWQ layout (also AutoRound's) load as compressed-tensors, experts too.",
        switch=SWITCH,
        why="Stock runs GPTQ and AWQ experts through kernels that have silu only and assert it. Names of unquantised layers do not match "
        "stock's modules. The compressed-tensors path, fixed for Gemma 4, accepts the same quantised values in another layout.",
        evidence="srt/layers/moe/moe_runner/marlin.py:143 · moe_wna16.py:405 · tests/engine/test_gptq_layout.py, test_zero_points.py",
        remove_when="SGLang's GPTQ and AWQ experts compute gelu_tanh.",
        uses=(uses.gptq,),
    ),
    Part(
        name="quantised_names",
        does="Layers that a checkpoint leaves unquantised, such as vision towers and routers, load unquantised.",
        switch="SGLANG_GEMMA4_CONFIGS",
        why="Stock compares ignore lists with its own names. The tower's q, k, v, gate and up (there ….q_proj.linear) become quantised "
        "layers without weights. K = V layers raise, and quantised routers are read without their scales.",
        evidence="srt/layers/quantization/compressed_tensors/utils.py:27-77 · srt/layers/clippable_linear.py:142, 266 · "
        "gemma4_causal.py:198 · crash_repro/quantised_vision.py, quantised_k_is_v.py, quantised_router.py, quantised_zero_points.py",
        remove_when="SGLang maps the names of a checkpoint's quantization_config to its Gemma 4 modules.",
        uses=(uses.quantised,),
    ),
    Part(
        name="unit_kv_scales",
        does="Under --quantization fp8, a KV cache without scales is written and read as without that flag.",
        switch="SGLANG_GEMMA4_QKV",
        why="SGLang's fp8 gives each attention layer a KV scale of 1. Keys and values are therefore cloned before they are written. This "
        "package's launches that write keys and values, or serve two types of rows at once, then step aside.",
        evidence="srt/layers/quantization/kv_cache.py:59 · srt/layers/attention/triton_backend.py:1721-1742 · "
        "tests/engine/test_unit_kv_scales.py (which launches stepped aside)",
        remove_when="SGLang leaves k_scale None if a checkpoint has none.",
        uses=(uses.quantised,),
    ),
    Part(
        name="sharded_head",
        does="Under tensor parallelism each rank scores its range of the vocabulary.",
        switch="SGLANG_GEMMA4_SHARDED_HEAD",
        why="Under tensor parallelism every rank of stock scores all 262,144 tokens. As many copies of the logits as there are ranks are "
        "then gathered.",
        evidence="srt/models/gemma3_causal.py:532 · srt/layers/logits_processor.py:484, 1024, 1258 (cuts off the copies) · two H200, "
        "26B-A4B with MTP: a verify step of 32 requests takes 10.64 ms, without it 11.21 ms; a step of one request is no shorter (5.04 "
        "ms and 5.10 ms), runs/2026-11-26-26b-tp2",
        remove_when="SGLang ties Gemma 4's LM head through a VocabParallelEmbedding.",
        uses=(uses.several_ranks,),
    ),
    Part(
        name="language_model_only",
        does="--language-model-only leaves the vision and audio towers out; their memory goes to the KV pools.",
        switch="SGLANG_GEMMA4_MEDIA_FIXES",
        why="Stock refuses --language-model-only for Gemma 4, so a text-only server keeps the towers in memory.",
        evidence="srt/server_args.py:335 (the list) · srt/models/gemma4_mm.py:199 (built on every first rank)",
        remove_when="Gemma4ForConditionalGeneration is on SGLang's list.",
        uses=(uses.no_towers,),
    ),
    Part(
        name="whole_checkpoints",
        does="A checkpoint is refused if a tensor is missing; tensors with text-only or older names load too.",
        switch="SGLANG_GEMMA4_CONFIGS",
        why="Stock skips tensors that it cannot name. It counts q, k and v, gate and up, or all experts as loaded when any one of them "
        "came. Text-only or older names with a multimodal config, an adapter's names, or a missing file or layer load without error. "
        "Stock then serves garbage with status 200.",
        evidence="srt/models/gemma4_mm.py:1044-1110 · gemma4_causal.py:1409 · crash_repro/partial_checkpoints.py",
        remove_when="SGLang refuses to start if a Gemma 4 parameter, or a part of a fused one, got no tensor.",
    ),
    Part(
        name="dummy_weights",
        does="--load-format dummy gives Gemma 4 weights of realistic spread, so that tokens and experts vary.",
        switch="SGLANG_GEMMA4_DUMMY_WEIGHTS",
        why="With uniform(±1e-3) weights the model repeats one token and uses eight experts. Such a benchmark measures nothing.",
        evidence="srt/model_loader/weight_utils.py (initialize_dummy_weights)",
        remove_when="SGLang's dummy weights keep activations at unit scale.",
        uses=(uses.random_weights,),
    ),
)

WEIGHT_UPDATES: tuple[tuple[str, Kind, str, str], ...] = (
    (f"{UPDATER}.update_weights_from_disk", "around", "update_from_disk", "d022aee84727"),
    (f"{UPDATER}.update_weights_from_tensor", "around", "update_from_tensors", "7917dc32f144"),
    (f"{UPDATER}.load_weights_from_distributed", "around", "update_from_received", "96b5dd21e878"),
    (f"{MANAGER}.update_weights_from_disk", "around", "ask_for_assistant", "b67dc2a5cf31"),
    (f"{UPDATER}.update_weights_from_ipc", "around", "update_from_ipc", "ce5eafc3f707"),
    (f"{MANAGER}.begin_weight_update", "around", "begin", "6ee0a8bc31d8"),
    (f"{MANAGER}.end_weight_update", "after", "share_scales", "7cd4623a8689"),
    (f"{MANAGER}.update_weights_from_tensor", "around", "for_one_model", "a4090c8ac4ac"),
    (f"{MANAGER}.update_weights_from_distributed", "around", "for_one_model", "b059149de4f9"),
    (f"{TOKENIZER}._update_model_path_info", "around", "name_target", "3fbbc8dd191b"),
    (f"{ASSISTANT}.load_weights", "around", "load_in_order", "55cffd5e9a5c"),
    (f"{ASSISTANT}._reorder_embedding_to_centroid_order", "around", "sort_head", "022b8d179cfc"),
)
"""Every way in which weights change under a running server: SGLang's function, the way in, ours, and the fingerprint."""

SEAMS = (
    Seam(
        "sglang.srt.utils.hf_transformers.common.get_hf_text_config",
        "after",
        "sglang_gemma4.models.text_config:flatten_root_config",
        "cc6c0d35b876",
        parts=("text_only_config",),
    ),
    Seam(
        f"{CUDA_GRAPH_HOOK}.disable_breakable_cudagraph_if_incompatible",
        "after",
        loading.keep_prefill_eager,
        "4c3fef3ba8a0",
        parts=("text_only_config",),
    ),
    Entry(
        "sglang.srt.utils.hf_transformers.common._CONFIG_REGISTRY",
        "gemma4_unified",
        loading.filled,
        "631b8b8d6ce8",
        parts=("unified_config",),
    ),
    Seam(
        "sglang.srt.configs.model_config.ModelConfig._config_draft_model",
        "before",
        "sglang_gemma4.models.untied_head:tell",
        "66e29df68d01",
        parts=("untied_head",),
    ),
    Seam(
        "sglang.srt.models.gemma4_causal.Gemma4Router.__init__",
        "after",
        "sglang_gemma4.models.layers.router:keep_scale_folded",
        "d1ce082df91c",
        parts=("router_scale",),
    ),
    Seam(
        "sglang.srt.model_executor.model_runner_components.weight_updater._model_load_weights_direct",
        "after",
        "sglang_gemma4.models.layers.router:refold_after_direct_load",
        "dbf9195a3202",
        parts=("router_scale",),
    ),
    *(
        Seam(target, kind, f"sglang_gemma4.speculative.assistant_weights:{function}", pin, parts=("weight_updates",))
        for target, kind, function, pin in WEIGHT_UPDATES
    ),
    Seam(
        "sglang.srt.configs.model_config.ModelConfig._config_draft_model",
        "before",
        loading.translate,
        "66e29df68d01",
        parts=("gptq_layout",),
    ),
    Seam(
        "sglang.srt.model_loader.loader._get_quantization_config",
        "after",
        "sglang_gemma4.models.quantised_checkpoint:map_names",
        "458ef27e0f80",
        parts=("quantised_names",),
    ),
    Seam(
        f"{MODELS}.gemma4_mm.Gemma4ForConditionalGeneration.load_weights",
        "around",
        "sglang_gemma4.models.quantised_checkpoint:load",
        "3c1f7137a36c",
        parts=("quantised_names",),
    ),
    Seam(
        f"{MODELS}.gemma4_unified.Gemma4UnifiedForConditionalGeneration.load_weights",
        "around",
        "sglang_gemma4.models.quantised_checkpoint:load",
        "1e2831320c81",
        parts=("quantised_names",),
    ),
    Seam(
        f"{MODELS}.gemma4_causal.Gemma4ForCausalLM.load_weights",
        "around",
        "sglang_gemma4.models.quantised_checkpoint:load",
        "0fc7fdc87d32",
        parts=("quantised_names",),
    ),
    Seam(
        "sglang.srt.model_executor.model_runner.ModelRunner.load_model",
        "after",
        loading.leave_out,
        "655a134e49f2",
        parts=("unit_kv_scales",),
    ),
    Seam(
        "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head",
        "around",
        loading.score_my_range,
        "edee85644b6e",
        parts=("sharded_head",),
    ),
    Seam(
        "sglang.srt.arg_groups.model_hook.handle_language_model_only",
        "before",
        loading.admit,
        "b1900fe60535",
        parts=("language_model_only",),
    ),
    Seam(
        f"{CUDA_GRAPH_HOOK}.disable_breakable_cudagraph_if_incompatible",
        "after",
        loading.language_model_only_keep_prefill_eager,
        "4c3fef3ba8a0",
        parts=("language_model_only",),
    ),
    Seam(
        "sglang.srt.models.gemma4_vision.Gemma4VisionEncoder.__init__",
        "around",
        "sglang_gemma4.models.towers:leave_out",
        "e5ff87d79ee5",
        parts=("language_model_only",),
    ),
    Seam(
        "sglang.srt.models.gemma4_audio.Gemma4AudioEncoder.__init__",
        "around",
        "sglang_gemma4.models.towers:leave_out",
        "469e1c4dd179",
        parts=("language_model_only",),
    ),
    Seam(
        "sglang.srt.models.gemma4_mm.Gemma4MultimodalEmbedder.__init__",
        "around",
        "sglang_gemma4.models.towers:leave_out",
        "995aed4687c7",
        parts=("language_model_only",),
    ),
    Seam(
        "sglang.srt.models.gemma4_unified.Gemma4UnifiedVisionEmbedder.__init__",
        "around",
        "sglang_gemma4.models.towers:leave_out",
        "0098362f62aa",
        parts=("language_model_only",),
    ),
    Seam(
        "sglang.srt.models.gemma4_unified.Gemma4UnifiedMultimodalEmbedder.__init__",
        "around",
        "sglang_gemma4.models.towers:leave_out",
        "3694555345fc",
        parts=("language_model_only",),
    ),
    Seam(
        "sglang.srt.models.gemma4_unified.Gemma4UnifiedForConditionalGeneration.load_weights",
        "before",
        "sglang_gemma4.models.towers:skip_towers",
        "1e2831320c81",
        parts=("language_model_only",),
    ),
    Seam(
        "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration.load_weights",
        "before",
        "sglang_gemma4.models.towers:skip_towers",
        "3c1f7137a36c",
        parts=("language_model_only",),
    ),
    Seam(
        f"{CHAT}._validate_media_content",
        "after",
        "sglang_gemma4.models.towers:name_the_flag",
        "92d5d0cb566a",
        parts=("language_model_only",),
    ),
    Seam(
        "sglang.srt.arg_groups.model_hook.handle_model_specific_adjustments",
        "after",
        whole_checkpoints.check_model,
        "1c321ef6fec8",
        parts=("whole_checkpoints",),
    ),
    Seam(
        "sglang.srt.arg_groups.speculative_hook._handle_frozen_kv_mtp",
        "after",
        whole_checkpoints.check_assistant,
        "7b0aa090be25",
        parts=("whole_checkpoints",),
    ),
    Seam(
        "sglang.srt.model_loader.loader.DefaultModelLoader._get_weights_iterator",
        "after",
        "sglang_gemma4.models.checkpoint_arrival:check_downloaded",
        "5fb97f347bd3",
        parts=("whole_checkpoints",),
    ),
    Seam(
        f"{RUNNER}.load_model",
        "around",
        "sglang_gemma4.models.checkpoint_arrival:at_start",
        "655a134e49f2",
        parts=("whole_checkpoints",),
    ),
    Seam(
        f"{RUNNER}.finalize_startup_weight_load",
        "around",
        "sglang_gemma4.models.checkpoint_arrival:at_start",
        "df514f9821c4",
        parts=("whole_checkpoints",),
    ),
    Seam(
        f"{MODELS}.gemma4_mm.Gemma4ForConditionalGeneration.load_weights",
        "around",
        "sglang_gemma4.models.checkpoint_arrival:load",
        "3c1f7137a36c",
        parts=("whole_checkpoints",),
    ),
    Seam(
        f"{MODELS}.gemma4_unified.Gemma4UnifiedForConditionalGeneration.load_weights",
        "around",
        "sglang_gemma4.models.checkpoint_arrival:load",
        "1e2831320c81",
        parts=("whole_checkpoints",),
    ),
    Seam(
        f"{MODELS}.gemma4_causal.Gemma4ForCausalLM.load_weights",
        "around",
        "sglang_gemma4.models.checkpoint_arrival:load",
        "0fc7fdc87d32",
        parts=("whole_checkpoints",),
    ),
    Seam(
        "sglang.srt.model_loader.weight_utils.initialize_dummy_weights",
        "around",
        loading.fill_gemma4,
        "d54d8b145f6f",
        parts=("dummy_weights",),
    ),
    Seam(
        "sglang.srt.model_loader.loader.DummyModelLoader.load_model",
        "around",
        loading.load_shared,
        "e6ad5c3811e2",
        parts=("dummy_weights",),
    ),
)
