"""4-bit checkpoints in GPTQ's or AWQ's layout (AutoRound's too) are read as compressed-tensors', experts too."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, switches, uses

SWITCH = "SGLANG_GEMMA4_CONFIGS"


def translate(model_config: Any) -> None:
    """Before ``_config_draft_model``, after which SGLang reads the quantisation."""
    from sglang_gemma4.models import gptq_layout

    gptq_layout.translate(model_config, is_read=switches.part_is_on("quantised_names", SWITCH))


PATCH = Patch(
    switch=SWITCH,
    why="Stock's GPTQ and AWQ experts go through kernels that have silu only, and assert it; names of layers that stay as they are do "
    "not meet its modules. compressed-tensors' path, repaired for Gemma 4, takes the same levels, laid out otherwise.",
    evidence="srt/layers/moe/moe_runner/marlin.py:143 · moe_wna16.py:405 · tests/engine/test_gptq_layout.py, test_zero_points.py",
    remove_when="SGLang's GPTQ and AWQ experts compute gelu_tanh.",
    uses=(uses.gptq,),
    hooks=(Hook("sglang.srt.configs.model_config.ModelConfig._config_draft_model", "before", translate, "66e29df68d01"),),
)
