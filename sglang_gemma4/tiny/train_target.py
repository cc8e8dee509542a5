"""Training one tiny target: text and vision together, weights that are nowhere one or zero by accident."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sglang_gemma4.tiny import families, spread_weights
from sglang_gemma4.tiny.batches import Rows
from sglang_gemma4.tiny.packed_forward import Batch, Pictures, chosen, hidden_states, joined, logits_of, to_device


def build(name: str, tokens: dict[str, int]) -> Any:
    """An untrained Gemma4ForConditionalGeneration (float32) of the family; `tokens` holds the special token ids."""
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration, Gemma4TextConfig, Gemma4VisionConfig

    config = Gemma4Config(
        text_config=Gemma4TextConfig(**families.TEXT[name]),
        vision_config=Gemma4VisionConfig(**families.vision(name)),
        audio_config=None,
        vision_soft_tokens_per_image=families.MAX_SOFT_TOKENS,
        tie_word_embeddings=True,
        **tokens,
    )
    config._attn_implementation = "sdpa"
    return Gemma4ForConditionalGeneration(config)


def initialise(model: Any, seed: int) -> None:
    """Spread weights, then noise on every norm and scale, fixed layer scalars, finite clips: no feature is an identity."""
    spread_weights.fill(model, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.mul_(1.0 + 0.1 * torch.randn(p.shape, generator=generator))
            elif name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
                p.mul_(0.5)
        for name, b in model.named_buffers():
            if name.endswith("layer_scalar"):
                b.fill_(families.LAYER_SCALARS[int(name.split("layers.")[1].split(".")[0])])
            elif name.endswith(("input_min", "input_max")):
                b.fill_(families.CLIP_INPUT * (-1 if name.endswith("min") else 1))
            elif name.endswith(("output_min", "output_max")):
                b.fill_(families.CLIP_OUTPUT * (-1 if name.endswith("min") else 1))
            elif name.endswith("std_bias"):
                b.copy_(0.5 * torch.randn(b.shape, generator=generator))
            elif name.endswith("std_scale"):
                b.copy_(1.0 + 0.2 * torch.randn(b.shape, generator=generator))


class Schedule:
    """Warm-up, then cosine to 2% over `steps`, hurried along when `seconds` would be passed."""

    def __init__(self, optimizer: Any, steps: int, seconds: float, warmup: int = 200) -> None:
        self.optimizer, self.steps, self.seconds, self.warmup = optimizer, steps, seconds, min(warmup, steps // 5 + 1)
        self.base = [g["lr"] for g in optimizer.param_groups]
        self.begin, self.step = time.time(), 0

    def advance(self) -> bool:
        """Set the next learning rate; False when training is over."""
        done = max(self.step / self.steps, (time.time() - self.begin) / self.seconds)
        scale = min(1.0, (self.step + 1) / self.warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
        for group, lr in zip(self.optimizer.param_groups, self.base, strict=False):
            group["lr"] = lr * scale
        self.step += 1
        return done < 1.0


def optimizer_for(model: Any, lr: float, decay: float = 0.02) -> torch.optim.Optimizer:
    """AdamW with decay on matrices only."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=next(model.parameters()).is_cuda)


def token_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Weighted cross entropy of the next token; a token counts by its own weight."""
    weights = batch.weights[:, 1:] * (batch.document[:, 1:] == batch.document[:, :-1])
    losses = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch.ids[:, 1:].flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def draw_batch(text: Rows, image: Rows, sizes: tuple[int, int], rng: np.random.Generator) -> Rows:
    """Random rows of both kinds."""
    return joined(chosen(text, rng.integers(len(text), size=sizes[0])), chosen(image, rng.integers(len(image), size=sizes[1])))


class RouterBalance:
    """Collects the routers' probabilities and returns the load-balancing loss, experts * sum(load * probability)."""

    def __init__(self, model: Any) -> None:
        self.terms: list[torch.Tensor] = []
        for module in model.modules():
            if type(module).__name__ == "Gemma4TextRouter":
                module.register_forward_hook(self._keep)

    def _keep(self, module: Any, inputs: Any, output: Any) -> None:
        probabilities, _, index = output
        load = functional.one_hot(index, probabilities.shape[-1]).float().sum(1).mean(0)
        self.terms.append((load * probabilities.mean(0)).sum() * probabilities.shape[-1] / index.shape[-1])

    def loss(self) -> torch.Tensor | float:
        terms, self.terms = self.terms, []
        return torch.stack(terms).mean() if terms else 0.0


def train(
    name: str,
    model: Any,
    text: Rows,
    image: Rows,
    pictures: Pictures,
    *,
    steps: int,
    seconds: float,
    lr: float,
    seed: int,
    sizes: tuple[int, int] = (16, 2),
    probe: Any = None,
) -> dict[str, Any]:
    """Train in place; returns steps made, seconds and the last loss. `probe(model)` is called now and then to report."""
    device = next(model.parameters()).device.type
    rng = np.random.default_rng(seed)
    optimizer, balance = optimizer_for(model, lr), RouterBalance(model)
    schedule = Schedule(optimizer, steps, seconds)
    begin, losses = time.time(), []
    while schedule.advance():
        batch = to_device(draw_batch(text, image, sizes, rng), pictures, model.config.text_config, device)
        hidden = hidden_states(model, batch, autocast=True).last_hidden_state.float()
        loss = token_loss(logits_of(model, hidden), batch)
        (loss + 0.01 * balance.loss()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        if schedule.step in (1, 20, 100) or schedule.step % 500 == 0:
            seen = float(torch.stack(losses[-100:]).mean())
            print(
                f"{name} target step {schedule.step} {time.time() - begin:.0f}s loss {seen:.4f} {probe(model) if probe else ''}", flush=True
            )
            balance.terms.clear()
    return {"steps": schedule.step, "seconds": round(time.time() - begin, 1), "loss": float(torch.stack(losses[-100:]).mean())}
