"""Training of a tiny target on text and images, from weights in which no norm, scale or clip is an identity."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sglang_gemma4.tiny import families, spread_weights
from sglang_gemma4.tiny.batches import Rows
from sglang_gemma4.tiny.packed_forward import Batch, Pictures, hidden_states, logits_of, to_device


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
    """Spread and roughened weights; what adds to the residual stream starts at half."""
    spread_weights.fill(model, seed)
    spread_weights.roughen(model, seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1 and name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
                p.mul_(0.5)


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


def optimizer_for(model: Any, lr: float) -> torch.optim.Optimizer:
    """AdamW with decay on matrices only."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.02},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=next(model.parameters()).is_cuda)


def token_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Weighted cross entropy of the next token; a token counts by its own weight."""
    weights = batch.weights[:, 1:] * (batch.document[:, 1:] == batch.document[:, :-1])
    losses = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch.ids[:, 1:].flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


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


@dataclass(frozen=True)
class Course:
    """What a training goes through: rows of text and images, how long, how fast, from which seed, and rows of both in a step."""

    text: Rows
    image: Rows
    pictures: Pictures
    steps: int
    seconds: float
    lr: float
    seed: int
    sizes: tuple[int, int]


def fit(
    name: str,
    model: Any,
    config: Any,
    course: Course,
    loss_of: Callable[[int, Batch], tuple[torch.Tensor, torch.Tensor]],
    describe: Callable[[Batch], str],
    done: Callable[[int], bool] = lambda step: False,
) -> dict[str, Any]:
    """Train ``model`` in place; returns the steps made, seconds and the last loss.

    Args:
        config: the target's text config, which decides the masks.
        loss_of: the loss to report and the one to minimise, for the number of the step and its rows.
        describe: what to print beside the loss now and then.
        done: whether to end after a step.
    """
    device, rng = next(model.parameters()).device.type, np.random.default_rng(course.seed)
    optimizer = optimizer_for(model, course.lr)
    schedule = Schedule(optimizer, course.steps, course.seconds)
    begin, losses = time.time(), deque[torch.Tensor](maxlen=100)

    def mean() -> float:
        return float(torch.stack(list(losses)).mean())

    while schedule.advance():
        drawn = [
            rows.pick(rng.integers(len(rows), size=size)) for rows, size in zip((course.text, course.image), course.sizes, strict=True)
        ]
        batch = to_device(Rows.join(drawn), course.pictures, config, device)
        loss, minimised = loss_of(schedule.step, batch)
        minimised.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        if schedule.step in (1, 20, 100) or schedule.step % 500 == 0:
            print(f"{name} step {schedule.step} {time.time() - begin:.0f}s loss {mean():.4f} {describe(batch)}", flush=True)
        if done(schedule.step):
            break
    return {"steps": schedule.step, "seconds": round(time.time() - begin, 1), "loss": mean()}


def train(name: str, model: Any, course: Course, probe: Callable[[Any], str]) -> dict[str, Any]:
    """Train a target; ``probe(model)`` is printed now and then."""
    balance = RouterBalance(model)

    def loss_of(_step: int, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = hidden_states(model, batch, autocast=True).last_hidden_state.float()
        loss = token_loss(logits_of(model, hidden), batch)
        return loss, loss + 0.01 * balance.loss()

    def describe(_batch: Batch) -> str:
        said = probe(model)
        balance.terms.clear()
        return said

    return fit(f"{name} target", model, model.config.text_config, course, loss_of, describe)
