"""The reference engine: SGLang on a processor without a GPU."""

from sglang_gemma4.cpu import parts
from sglang_gemma4.patching import Entry, Part, Seam, resolution_step, uses

BACKENDS = "sglang.srt.layers.attention.attention_registry.ATTENTION_BACKENDS"
EAGLE = "sglang.srt.speculative.eagle_utils"
DFLASH = "sglang.srt.speculative.dflash_utils"
TORCH = "sglang.srt.lora.backend.torch_backend.TorchNativeLoRABackend"
MANAGER = "sglang.srt.lora.lora_manager.LoRAManager"
COMPRESSED = "sglang.srt.layers.quantization.compressed_tensors.compressed_tensors"
FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
FP8 = "sglang.srt.layers.quantization.fp8"

PARTS = (
    Part(
        name="cpu_engine",
        does="The CPU engine computes attention and the kernels that SGLang needs, in torch and float32.",
        switch="SGLANG_GEMMA4_CPU",
        why="Without AMX, SGLang demotes intel_amx to torch_native. torch_native neither translates sliding-window slots nor verifies "
        "drafts. With AMX, the kernels come from a build of sgl_kernel that is in no registry.",
        evidence="arg_groups/overrides.py:1301 · layers/attention/torch_native_backend.py · frozen_kv_mtp_worker_v2.py (topk > 1)",
        remove_when="SGLang serves Gemma 4 with MTP on a CPU without AMX.",
        cpu_engine=True,
    ),
    Part(
        name="cpu_fork",
        does="A CPU server forks its scheduler and detokenizer from its first process, so that SGLang is imported once.",
        switch="SGLANG_GEMMA4_CPU",
        why="SGLang starts each process of a server from scratch, and each imports SGLang again. These imports are most of a small "
        "model's start on a CPU.",
        evidence="entrypoints/engine.py:1995",
        remove_when="SGLang forks its processes if there is no accelerator.",
        cpu_engine=True,
    ),
    Part(
        name="cpu_sampling",
        does="Under MTP, sampled requests are sampled on a CPU too, as by the CUDA kernels.",
        switch="SGLANG_GEMMA4_CPU",
        why="On a CPU, SGLang verifies drafts greedily, whatever temperature, top-p and top-k say. With this patch sampled requests are "
        "sampled, with the semantics of the CUDA kernels.",
        evidence="speculative/eagle_utils.py:500 · kernels/jit/include/sgl_kernel/speculative/sampling.cuh",
        remove_when="SGLang has sampling verify kernels for the CPU.",
        cpu_engine=True,
    ),
    Part(
        name="cpu_images",
        does="Images attend both ways on a CPU too, on the layers that the config names.",
        switch="SGLANG_GEMMA4_CPU",
        why="Only triton and fa4 support Gemma 4's bidirectional images, and use them on every layer and for every model. transformers "
        "uses them on sliding layers only, if the config asks for them.",
        evidence="models/gemma4_mm.py:325 · transformers modeling_gemma4.py create_masks_for_vision_model",
        remove_when="SGLang's masks equal transformers'.",
        uses=(uses.images,),
        cpu_engine=True,
    ),
    Part(
        name="cpu_lora",
        does="LoRA adapters work on a CPU too.",
        switch="SGLANG_GEMMA4_CPU",
        why="SGLang's LoRA needs pinned memory, which torch provides only on a machine with a GPU. Its torch_native backend needs "
        "offsets that a replicated layer does not give.",
        evidence="srt/lora/layers.py:586-595, 956-961 · srt/lora/backend/torch_backend.py:84-106, 217-245",
        remove_when="SGLang's torch_native LoRA backend runs on a CPU.",
        uses=(uses.lora,),
        cpu_engine=True,
    ),
    Part(
        name="cpu_quantised",
        does="Quantised checkpoints are served in float32 on a CPU too.",
        switch="SGLANG_GEMMA4_CPU",
        why="SGLang's quantised GEMMs are kernels for a GPU (or for AMX). The CPU reference engine has none of them.",
        evidence="srt/layers/quantization/compressed_tensors/compressed_tensors.py:421 (asks CUDA for its compute capability) · fp8.py, "
        "process_weights_after_loading",
        remove_when="SGLang serves fp8 and 4-bit checkpoints on a CPU without AMX.",
        cpu_engine=True,
    ),
    Part(
        name="cpu_experts",
        does="Under expert parallelism each rank of a CPU engine computes its own experts.",
        switch="SGLANG_GEMMA4_CPU",
        why="In SGLang's torch experts, -1 marks an expert of another rank, but is used as an index. The first batch ends the server.",
        evidence="srt/layers/moe/fused_moe_native.py:77 · tests/engine/test_parallel_forms.py",
        remove_when="moe_forward_native skips the experts of other ranks.",
        cpu_engine=True,
    ),
)

SEAMS = (
    Entry(BACKENDS, "intel_amx", "sglang_gemma4.cpu.attention_backend:Gemma4CpuAttention", "a1988fa258e1", parts=("cpu_engine",)),
    Entry(BACKENDS, "torch_native", "sglang_gemma4.cpu.attention_backend:Gemma4CpuAttention", "1727eff9e9ab", parts=("cpu_engine",)),
    Seam(
        "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker._init_draft_attn_backend",
        "around",
        "sglang_gemma4.cpu.attention_backend:draft_backend",
        "521cbe95ce3b",
        parts=("cpu_engine",),
    ),
    resolution_step("handle_page_major_kv_layout", parts.reads_pages, parts=("cpu_engine",)),
    Seam(
        "sglang.srt.entrypoints.engine._set_envs_and_config",
        "after",
        "sglang_gemma4.cpu.processes:fork_children",
        "b3ddd8a51c62",
        parts=("cpu_fork",),
    ),
    Seam(f"{EAGLE}._verify_uses_greedy", "replace", "sglang_gemma4.cpu.verify:decides_greedily", "aef4e7dc4b27", parts=("cpu_sampling",)),
    Entry(
        f"{EAGLE}.__dict__",
        "tree_speculative_sampling_target_only",
        "sglang_gemma4.cpu.verify:verify_sampled",
        "absent",
        parts=("cpu_sampling",),
    ),
    Entry(
        f"{DFLASH}.__dict__",
        "tree_speculative_sampling_target_only",
        "sglang_gemma4.cpu.verify:verify_sampled",
        "absent",
        parts=("cpu_sampling",),
    ),
    Entry(
        "sglang.kernels.ops.speculative.dspark.dspark_accept.__dict__",
        "chain_speculative_sampling_triton",
        "sglang_gemma4.cpu.verify:verify_sampled",
        "405e6a077e7f",
        parts=("cpu_sampling",),
    ),
    Seam(
        f"{DFLASH}.is_dflash_sampling_verify_available",
        "replace",
        "sglang_gemma4.cpu.verify:samples_blocks",
        "9a66c4eba0f8",
        parts=("cpu_sampling",),
    ),
    Entry(f"{EAGLE}.__dict__", "top_k_renorm_prob", "sglang_gemma4.cpu.sampling:top_k_renorm", "absent", parts=("cpu_sampling",)),
    Entry(f"{EAGLE}.__dict__", "top_p_renorm_prob", "sglang_gemma4.cpu.sampling:top_p_renorm", "absent", parts=("cpu_sampling",)),
    Seam(
        "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration.prepare_attn_masks",
        "around",
        "sglang_gemma4.cpu.attention_backend:image_masks",
        "5fa09fbdafa9",
        parts=("cpu_images",),
    ),
    Seam(
        f"{FACTORY}.create_decode_backend", "around", "sglang_gemma4.cpu.own_drafts:decode_backend", "4c64d44d5209", parts=("cpu_engine",)
    ),
    Seam(
        f"{FACTORY}.create_draft_extend_backend",
        "around",
        "sglang_gemma4.cpu.own_drafts:extend_backend",
        "e5f00a4a9aa5",
        parts=("cpu_engine",),
    ),
    Seam(
        "sglang.srt.arg_groups.speculative_hook._handle_dflash",
        "around",
        "sglang_gemma4.cpu.own_drafts:resolve_blocks",
        "12b1b03eca9f",
        parts=("cpu_engine",),
    ),
    Seam(
        "sglang.srt.arg_groups.speculative_hook._handle_dspark",
        "around",
        "sglang_gemma4.cpu.own_drafts:resolve_blocks",
        "1013ddf3436f",
        parts=("cpu_engine",),
    ),
    Seam(
        "sglang.srt.speculative.dspark_components.dspark_worker_v2.DSparkWorkerV2.forward_batch_generation",
        "around",
        "sglang_gemma4.cpu.own_drafts:without_streams",
        "06fb04b05aec",
        parts=("cpu_engine",),
        pins="signature",
    ),
    Seam(
        "sglang.srt.speculative.draft_worker_common.resolve_draft_worker_attention_backend",
        "around",
        "sglang_gemma4.cpu.own_drafts:draft_backend_name",
        "cda11210a998",
        parts=("cpu_engine",),
    ),
    Seam(
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.forward_batch_generation",
        "around",
        "sglang_gemma4.cpu.own_drafts:without_streams",
        "54e805c8c672",
        parts=("cpu_engine",),
    ),
    Seam(f"{MANAGER}.init_state", "around", "sglang_gemma4.cpu.lora:unpinned", "7e6d316eac75", parts=("cpu_lora",)),
    Seam(f"{MANAGER}.prepare_lora_batch", "around", "sglang_gemma4.cpu.lora:unpinned", "1106f6ffb239", parts=("cpu_lora",)),
    Seam(f"{TORCH}.run_lora_b_sgemm", "around", "sglang_gemma4.cpu.lora:with_offsets", "e291d8333ea3", parts=("cpu_lora",)),
    Seam(
        f"{COMPRESSED}.CompressedTensorsConfig.get_supported_act_dtypes",
        "around",
        "sglang_gemma4.cpu.quantised:every_dtype",
        "02264000d645",
        parts=("cpu_quantised",),
    ),
    Seam(
        f"{FP8}.Fp8Config.get_supported_act_dtypes",
        "around",
        "sglang_gemma4.cpu.quantised:every_dtype",
        "df0cbd92d79f",
        parts=("cpu_quantised",),
    ),
    Seam(
        f"{COMPRESSED}.CompressedTensorsConfig._check_scheme_supported",
        "around",
        "sglang_gemma4.cpu.quantised:no_card_needed",
        "ccfe3006a1fb",
        parts=("cpu_quantised",),
    ),
    Seam(
        f"{COMPRESSED}.CompressedTensorsLinearMethod.process_weights_after_loading",
        "around",
        "sglang_gemma4.cpu.quantised:linear_of_checkpoint",
        "754a8cf0a7f1",
        parts=("cpu_quantised",),
    ),
    Seam(
        f"{COMPRESSED}.CompressedTensorsFusedMoEMethod.process_weights_after_loading",
        "around",
        "sglang_gemma4.cpu.quantised:experts_of_checkpoint",
        "754a8cf0a7f1",
        parts=("cpu_quantised",),
    ),
    Seam(
        f"{FP8}.Fp8LinearMethod.process_weights_after_loading",
        "around",
        "sglang_gemma4.cpu.quantised:linear_at_load",
        "563f9d4c091e",
        parts=("cpu_quantised",),
    ),
    Seam(
        f"{FP8}.Fp8MoEMethod.process_weights_after_loading",
        "around",
        "sglang_gemma4.cpu.quantised:experts_at_load",
        "a8dff95e2ddc",
        parts=("cpu_quantised",),
    ),
    Seam(
        "sglang.srt.layers.moe.fused_moe_native.moe_forward_native",
        "around",
        "sglang_gemma4.cpu.experts:of_this_rank",
        "53b7e13072db",
        parts=("cpu_experts",),
    ),
)
