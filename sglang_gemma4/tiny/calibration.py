"""Static activation scales of a tiny model, from the largest input of each linear layer over training documents."""

import itertools
from pathlib import Path
from typing import Any

import torch

from sglang_gemma4.tiny import batches
from sglang_gemma4.tiny import tokenizer as tiny_tokenizer
from sglang_gemma4.tiny.batches import Encoder

ROWS, SEED = 4, 11
"""Packed rows of 512 tokens, and a seed that neither training nor the evaluation uses."""
FLOAT8_MOST = 448.0


def input_scales(folder: Path) -> dict[str, float]:
    """The input scale of each linear layer of the language model and of each expert, by the layer's name."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    largest: dict[str, float] = {}

    def see(name: str, values: torch.Tensor) -> None:
        largest[name] = max(largest.get(name, 0.0), float(values.abs().max()))

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, args, name=name: see(name, args[0]))
        elif name.endswith(".experts"):
            module.register_forward_pre_hook(lambda experts, args, name=name: _see_experts(experts, args, name, see))
    rows = batches.text_rows(Encoder(tiny_tokenizer.load_raw(folder)), SEED, ROWS)
    with torch.no_grad():
        for row in rows:
            model(input_ids=torch.tensor(row["id"].astype("int64"))[None])
    return {name: value / FLOAT8_MOST for name, value in largest.items()}


def _see_experts(experts: Any, args: tuple[torch.Tensor, ...], name: str, see: Any) -> None:
    """Record the inputs of all experts. All read the same rows; the input of ``down_proj`` is computed for the chosen experts."""
    hidden, chosen = args[0].reshape(-1, args[0].shape[-1]), args[1]
    gate, up = torch.einsum("th,eoh->teo", hidden, experts.gate_up_proj).chunk(2, dim=-1)
    inner = experts.act_fn(gate) * up
    used = torch.zeros(inner.shape[:2], dtype=torch.bool).scatter_(1, chosen.reshape(len(hidden), -1), True)
    for number, part in itertools.product(range(experts.num_experts), ("gate_proj", "up_proj", "down_proj")):
        see(f"{name}.{number}.{part}", inner[used] if part == "down_proj" else hidden)
