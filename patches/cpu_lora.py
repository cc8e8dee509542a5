"""LoRA adapters work on a CPU too."""

from sglang_gemma4.patching import Hook, Patch, uses

TORCH = "sglang.srt.lora.backend.torch_backend.TorchNativeLoRABackend"
MANAGER = "sglang.srt.lora.lora_manager.LoRAManager"
UNPINNED = "sglang_gemma4.cpu.lora:unpinned"

PATCH = Patch(
    switch="SGLANG_GEMMA4_CPU",
    why="SGLang's LoRA asks for pinned memory, which torch has on a machine with a card only, and its torch_native backend for offsets "
    "that a replicated layer does not give.",
    evidence="srt/lora/layers.py:586-595, 956-961 · srt/lora/backend/torch_backend.py:84-106, 217-245",
    remove_when="SGLang's torch_native LoRA backend runs on a CPU.",
    uses=(uses.lora,),
    hooks=(
        Hook(f"{MANAGER}.init_state", "around", UNPINNED, "7e6d316eac75"),
        Hook(f"{MANAGER}.prepare_lora_batch", "around", UNPINNED, "1106f6ffb239"),
        Hook(f"{TORCH}.run_lora_b_sgemm", "around", "sglang_gemma4.cpu.lora:with_offsets", "e291d8333ea3"),
    ),
    cpu_engine=True,
)
