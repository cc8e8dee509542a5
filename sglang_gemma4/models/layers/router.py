"""The MoE router's scale, folded into its norm on every path and again after each weight update."""

from typing import Any

import torch


def keep_scale_folded(_result: None, router: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4Router.__init__``: the scale is applied on every path, and folded again whenever it is loaded.

    SGLang folds ``scale * hidden_size**-0.5`` into ``router.norm.weight`` once, at the first forward, and builds that
    norm ``with_scale=False``. The CUDA kernel multiplies by the weight all the same; ``forward_native`` (CPU, ROCm,
    torch.compile) does not. ``with_scale=True`` corrects it and, with ``scale_shift`` 0, chooses the same CUDA kernel
    with the same arguments. The fold writes in place, so a captured CUDA graph reads the new values.
    """
    from sglang.srt.model_loader.weight_utils import default_weight_loader

    router.norm.with_scale = True

    def load_and_fold(parameter: torch.Tensor, loaded_weight: torch.Tensor) -> None:
        default_weight_loader(parameter, loaded_weight)
        with torch.no_grad():
            router.fuse_scale()

    router.scale.weight_loader = load_and_fold


@torch.no_grad()
def refold_after_direct_load(_result: None, model: torch.nn.Module, _named_tensors: Any) -> None:
    """After ``update_weights_from_tensor(load_format="direct")``, which bypasses parameters' loaders: fold again."""
    from sglang.srt.models.gemma4_causal import Gemma4Router

    for module in model.modules():
        if isinstance(module, Gemma4Router):
            module.fuse_scale()
