"""Images attend both ways on a CPU too, on the layers that the config says."""

from sglang_gemma4.patching import Hook, Patch, uses

PATCH = Patch(
    switch="SGLANG_GEMMA4_CPU",
    why="Only triton and fa4 know Gemma 4's bidirectional images, on every layer and for every model; transformers has them on "
    "sliding layers, where the config asks for it.",
    evidence="models/gemma4_mm.py:325 · transformers modeling_gemma4.py create_masks_for_vision_model",
    remove_when="SGLang's masks equal transformers'.",
    uses=(uses.images,),
    hooks=(
        Hook(
            "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration.prepare_attn_masks",
            "around",
            "sglang_gemma4.cpu.attention_backend:image_masks",
            "5fa09fbdafa9",
        ),
    ),
    cpu_engine=True,
)
