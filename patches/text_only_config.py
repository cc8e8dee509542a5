"""Text-only checkpoints load as transformers 5.19 saves them."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses

MODULE = "sglang.srt.arg_groups.cuda_graph_hook"


def keep_prefill_eager(_result: None, server_args: Any) -> None:
    """After ``disable_breakable_cudagraph_if_incompatible``."""
    from sglang_gemma4.models.schedule.prefill_backend import keep_text_eager

    keep_text_eager(server_args)


PATCH = Patch(
    switch="SGLANG_GEMMA4_CONFIGS",
    why="Stock flattens transformers' per_layer_config under text_config only: Gemma4ForCausalLM ends in "
    "AmbiguousGlobalPerLayerAttributeError before any weight is read. On CUDA it then captures prefills, and raises where layers share KV.",
    evidence="srt/utils/hf_transformers/config.py:267 (hasattr raises) · :321 (gemma4_text is not in _GEMMA4_MODEL_TYPES) · "
    "model_executor/model_runner_components/cuda_graph_setup.py:156",
    remove_when="SGLang's get_config flattens a root config of type gemma4_text.",
    uses=(uses.text_only,),
    hooks=(
        Hook(
            "sglang.srt.utils.hf_transformers.common.get_hf_text_config",
            "after",
            "sglang_gemma4.models.text_config:flatten_root_config",
            "cc6c0d35b876",
        ),
        Hook(f"{MODULE}.disable_breakable_cudagraph_if_incompatible", "after", keep_prefill_eager, "4c3fef3ba8a0"),
    ),
)
