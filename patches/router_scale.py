"""The MoE router's scale is applied on every path and follows weight updates."""

from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch

MODULE = "sglang.srt.model_executor.model_runner_components.weight_updater"


def prepare_router(_result: None, router: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4Router.__init__``."""
    from sglang.srt.model_loader.weight_utils import default_weight_loader

    from sglang_gemma4.models.layers.router import keep_scale_folded

    keep_scale_folded(router, default_weight_loader)


def refold_after_direct_load(_result: None, model: Any, _named_tensors: Any) -> None:
    """After ``update_weights_from_tensor(load_format="direct")``, which passes by the parameters' own loaders."""
    from sglang.srt.models.gemma4_causal import Gemma4Router

    from sglang_gemma4.models.layers.router import refold_all

    refold_all(model, Gemma4Router)


PATCH = Patch(
    switch="SGLANG_GEMMA4_MODEL_FIXES",
    why="The fold is made once and goes stale with the first weight update, and the native norm ignores it: "
    "experts are chosen by unscaled logits, without any error.",
    evidence="srt/models/gemma4_causal.py:203-212 · srt/layers/layernorm.py:1425 (forward_native)",
    remove_when="Gemma4Router applies its scale on the native path and refolds it in load_weights.",
    uses=(uses.moe,),
    hooks=(
        Hook("sglang.srt.models.gemma4_causal.Gemma4Router.__init__", "after", prepare_router, "d1ce082df91c"),
        Hook(f"{MODULE}._model_load_weights_direct", "after", refold_after_direct_load, "dbf9195a3202"),
    ),
)
