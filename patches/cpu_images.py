"""Images on the CPU engine: masks as transformers has them, and no prefill chunk that cuts one."""

from sglang_gemma4.patching import Hook, Patch

ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"

PATCH = Patch(
    name="cpu_images",
    switch="SGLANG_GEMMA4_CPU",
    why="Only triton and fa4 know Gemma 4's bidirectional images, on every layer and for every model; transformers has them on "
    "sliding layers, where the config asks for it. An image cut by a prefill chunk loses them.",
    evidence="models/gemma4_mm.py:325 · transformers modeling_gemma4.py create_masks_for_vision_model · managers/schedule_policy.py:1140",
    remove_when="SGLang's masks equal transformers' and its chunks end beside images.",
    hooks=(
        Hook(
            "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration.prepare_attn_masks",
            "around",
            "sglang_gemma4.cpu.registration:image_masks",
            "5fa09fbdafa9",
        ),
        Hook(f"{ADDER}.add_chunked_req", "around", "sglang_gemma4.cpu.registration:chunk_beside_images", "59878bb13f91"),
        Hook(f"{ADDER}.add_one_req", "around", "sglang_gemma4.cpu.registration:chunk_beside_images", "194314fb5aba"),
    ),
    cpu_engine=True,
)
