"""The MoE router's scale, folded into its norm on every path and again after each weight update."""

from collections.abc import Callable
from typing import Any

import torch

WeightLoader = Callable[..., None]


def keep_scale_folded(router: Any, load: WeightLoader) -> None:
    """Make a ``Gemma4Router`` apply its scale everywhere and refold it whenever the scale is loaded.

    SGLang folds ``scale * hidden_size**-0.5`` into ``router.norm.weight`` once, at the first forward, and builds that
    norm ``with_scale=False``. The CUDA kernel multiplies by the weight all the same; ``forward_native`` (CPU, ROCm,
    torch.compile) does not. ``with_scale=True`` corrects it and, with ``scale_shift`` 0, chooses the same CUDA kernel
    with the same arguments.

    ``load(parameter, loaded_weight)`` is the loader the scale would otherwise get. The refold writes in place, so a
    captured CUDA graph reads the new values.
    """
    router.norm.with_scale = True

    def load_and_fold(parameter: torch.Tensor, loaded_weight: torch.Tensor) -> None:
        load(parameter, loaded_weight)
        refold(router)

    router.scale.weight_loader = load_and_fold


@torch.no_grad()
def refold(router: Any) -> None:
    """Fold the router's present scale into ``norm.weight``, in place."""
    router.fuse_scale()


def refold_all(model: torch.nn.Module, router_class: type) -> int:
    """Refold every router of ``model`` and return their number; for loaders that write parameters directly."""
    routers = [module for module in model.modules() if isinstance(module, router_class)]
    for router in routers:
        refold(router)
    return len(routers)
