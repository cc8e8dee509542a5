"""Experts of 4 bits with zero points: SGLang turns their levels and scales when it loads them, but not the zero points. Needs no GPU.

Each layer's zero points are compared with the checkpoint's, and tokens with transformers'. Without a card SGLang's Triton kernels are
interpreted (``instruments/triton_experts.py``), after the rearrangement of weights that a card gets.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import quantised  # type: ignore[import-not-found]

MODEL = "ZERO_POINTS_OF"


def main() -> int:
    """Greedy tokens, against transformers' with the same weights in float32."""
    others = ("router_scale", "expert_gelu")  # failures of their own
    switches = engines.package_with("quantised_experts", "quantised_names", *others) or engines.stock_but(*others)
    with tempfile.TemporaryDirectory() as folder:
        model = quantised.write(Path(folder) / "model", form="w4a16-asym-g32")
        env = {"TRITON_INTERPRET": "1", MODEL: str(model), **switches}
        seen = engines.ask(model, "quantised:answer", env=env, prepare="quantised_zero_points:prepare")
        expected = quantised.expected(model)
    return int(case.verdict(expected, seen))


def prepare() -> None:
    """In the engine, before patches are placed: compare what was loaded before it is rearranged."""
    from sglang_gemma4.cpu import quantised as cpu
    from tests.harness.instruments import triton_experts

    triton_experts.install_quantised()
    engine: Any = cpu
    finish, given = engine.experts_of_checkpoint, of_checkpoint(Path(os.environ[MODEL]))

    def compared(original: Any, method: Any, layer: Any) -> None:
        loaded = layer.w13_weight_zero_point.data
        if not any(loaded.shape == one.shape and bool((loaded == one).all()) for one in given):
            raise ValueError("an expert layer's zero points are not those of any layer of the checkpoint")
        finish(original, method, layer)

    engine.experts_of_checkpoint = compared


def of_checkpoint(folder: Path) -> list[Any]:
    """Each layer's zero points of gate and up, ``[experts, groups, outputs / 8]``."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    layers = {name.split(".experts.")[0] for name in tensors if ".experts." in name}

    def turned(layer: str, expert: int) -> torch.Tensor:
        parts = (tensors[f"{layer}.experts.{expert}.{part}_proj.weight_zero_point"] for part in ("gate", "up"))
        return torch.cat([part.T for part in parts], 1)

    count = len({name.split(".experts.")[1].split(".")[0] for name in tensors if ".experts." in name})
    return [torch.stack([turned(layer, expert) for expert in range(count)]) for layer in sorted(layers)]


if __name__ == "__main__":
    sys.exit(main())
