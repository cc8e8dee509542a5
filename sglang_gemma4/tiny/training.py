"""Trains a tiny target on text and images, and its MTP assistant against the frozen target.

Both start from weights in which no norm, scale or clip is an identity. The assistant learns three draft steps from
every position, teacher-forced.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from torch.nn import functional

from sglang_gemma4.tiny import checkpoints, families, spread_weights, unified, upcycle
from sglang_gemma4.tiny.batches import Array, Pictures
from sglang_gemma4.tiny.drafting import draft_states, matched_drafts, shifted
from sglang_gemma4.tiny.packed_forward import Batch, hidden_states, logits_of, to_device

STEP_WEIGHTS = (1.0, 0.7, 0.5)  # loss weight of each draft step
RECLUSTER, FIRST_LOOK, LOOK_EVERY = 150, 200, 20
WARMUP = 200  # steps


@dataclass(frozen=True)
class Course:
    """The settings of a training: rows of text and images, steps, seconds, learning rate, seed, and rows of both per step."""

    text: Array
    image: Array
    pictures: Pictures
    steps: int
    seconds: float
    lr: float
    seed: int
    sizes: tuple[int, int]


def build_target(name: str, tokens: dict[str, int], seed: int) -> Any:
    """An untrained ``Gemma4ForConditionalGeneration`` (float32) of the family; ``tokens`` as ``export.special_ids`` gives them.

    Layers that add to the residual stream start at half their spread. The unified family starts from tiny-31b's
    language model.
    """
    if families.is_unified(name):
        return upcycled(unified.build(tokens, seed), "", seed)
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration, Gemma4TextConfig, Gemma4VisionConfig

    config = Gemma4Config(
        text_config=Gemma4TextConfig(**families.TEXT[name]),
        vision_config=Gemma4VisionConfig(**families.vision(name)),
        audio_config=None,
        vision_soft_tokens_per_image=families.MAX_SOFT_TOKENS,
        tie_word_embeddings=True,
        **tokens,
    )
    model = _initialised(Gemma4ForConditionalGeneration, config, seed)
    with torch.no_grad():
        for parameter_name, p in model.named_parameters():
            if p.dim() > 1 and parameter_name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
                p.mul_(0.5)
    return model


def build_assistant(name: str, seed: int) -> Any:
    """An untrained ``Gemma4AssistantForCausalLM`` (float32) of the family; the unified one starts from tiny-31b's."""
    if families.is_unified(name):
        return upcycled(unified.build_assistant(seed), "-assistant", seed)
    from transformers import Gemma4TextConfig
    from transformers.models.gemma4_assistant import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

    config = Gemma4AssistantConfig(text_config=Gemma4TextConfig(**families.assistant_text(name)), **families.assistant(name))
    return _initialised(Gemma4AssistantForCausalLM, config, seed)


def upcycled(model: Any, role: str, seed: int) -> Any:
    """``model`` filled with the matching weights of tiny-31b's target, or of its assistant for the role "-assistant"."""
    import transformers

    path = checkpoints.SHIPPED / f"{upcycle.SOURCE}{role}"
    (kind,) = transformers.AutoConfig.from_pretrained(path).architectures
    upcycle.fill(model, getattr(transformers, kind).from_pretrained(path, dtype=torch.float32), seed)
    model.config._attn_implementation = "sdpa"
    return model


def _initialised(kind: Any, config: Any, seed: int) -> Any:
    config._attn_implementation = "sdpa"
    model = kind(config)
    spread_weights.fill(model, seed)
    spread_weights.roughen(model, seed)
    return model


def train_target(name: str, model: Any, course: Course, probe: Callable[[Any], str]) -> dict[str, Any]:
    """Train ``model`` in place; ``probe(model)`` is printed now and then."""
    balance = _router_terms(model)

    def loss_of(_step: int, batch: Batch) -> torch.Tensor:
        balance.clear()
        hidden = hidden_states(model, batch, autocast=True).last_hidden_state.float()
        loss = token_loss(logits_of(model, hidden), batch)
        return loss + 0.01 * torch.stack(balance).mean() if balance else loss

    return fit(f"{name} target", model, model.config.text_config, course, loss_of, lambda _batch: probe(model))


def train_assistant(
    name: str, target: Any, assistant: Any, course: Course, accept: Callable[[Any], dict[str, float]], accept_until: float
) -> dict[str, Any]:
    """Train the assistant in place; a centroid head is clustered at the start and again at ``RECLUSTER``.

    ``accept(assistant)`` measures accept lengths; training stops once their "all" reaches ``accept_until``, so that a later change of
    the serving code can show in both directions.
    """
    target.requires_grad_(False)
    output: Any = None

    def loss_of(step: int, batch: Batch) -> torch.Tensor:
        nonlocal output
        if assistant.masked_embedding is not None and step in (1, RECLUSTER + 1):
            cluster(assistant)
        with torch.no_grad():
            output = hidden_states(target, batch, shared_kv=True, autocast=True)
            output.last_hidden_state = output.last_hidden_state.float()
        return draft_loss(target, assistant, batch, output)

    def describe(batch: Batch) -> str:
        written = (batch.weights >= 1.0) & (batch.document >= 0)
        mean = float(matched_drafts(target, assistant, batch, output)[written].float().mean())
        return f"teacher-forced accept {1 + mean:.3f}"

    def done(step: int) -> bool:
        if step < FIRST_LOOK or step % LOOK_EVERY:
            return False
        seen = accept(assistant)
        print(f"{name} assistant step {step} accept {seen}", flush=True)
        return seen["all"] >= accept_until

    return fit(f"{name} assistant", assistant, target.config.text_config, course, loss_of, describe, done)


def fit(
    name: str,
    model: Any,
    config: Any,
    course: Course,
    loss_of: Callable[[int, Batch], torch.Tensor],
    describe: Callable[[Batch], str],
    done: Callable[[int], bool] = lambda step: False,
) -> dict[str, Any]:
    """Train ``model`` in place with AdamW, warm-up and a cosine to 2%; returns the number of steps, seconds and the last loss.

    The schedule is shortened if ``course.seconds`` would pass before ``course.steps``.

    Args:
        config: the target's text config, which decides the masks.
        loss_of: the loss of a step, from its number (from 1) and its rows.
        describe: what to print with the loss now and then.
        done: whether to end after a step.
    """
    device, rng = next(model.parameters()).device.type, np.random.default_rng(course.seed)
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if (p.dim() > 1) == matrix], "weight_decay": 0.02 * matrix} for matrix in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=course.lr, betas=(0.9, 0.98), fused=device == "cuda")
    warmup, begin, step = min(WARMUP, course.steps // 5 + 1), time.time(), 0
    losses = deque[torch.Tensor](maxlen=100)

    def progress(step: int) -> float:
        return max(step / course.steps, (time.time() - begin) / course.seconds)

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / warmup) * (0.02 + 0.49 * (1 + math.cos(math.pi * min(1.0, progress(step)))))

    def mean() -> float:
        return float(torch.stack(list(losses)).mean())

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    while progress(step) < 1.0:
        step += 1
        drawn = [rows[rng.integers(len(rows), size=size)] for rows, size in zip((course.text, course.image), course.sizes, strict=True)]
        batch = to_device(np.concatenate(drawn), course.pictures, config, device)
        loss = loss_of(step, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        if step in (1, 20, 100) or step % 500 == 0:
            print(f"{name} step {step} {time.time() - begin:.0f}s loss {mean():.4f} {describe(batch)}", flush=True)
        if done(step):
            break
    return {"steps": step, "seconds": round(time.time() - begin, 1), "loss": mean()}


def token_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Weighted cross entropy of the next token; each token counts by its own weight."""
    weights = batch.weights[:, 1:] * (batch.document[:, 1:] == batch.document[:, :-1])
    losses = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch.ids[:, 1:].flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def _router_terms(model: Any) -> list[torch.Tensor]:
    """A list to which each router appends its load-balancing loss, experts * sum(load * probability), in every forward pass."""
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRouter

    terms: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        probabilities, _, index = output
        load = functional.one_hot(index, probabilities.shape[-1]).float().sum(1).mean(0)
        terms.append((load * probabilities.mean(0)).sum() * probabilities.shape[-1] / index.shape[-1])

    for module in model.modules():
        if isinstance(module, Gemma4TextRouter):
            module.register_forward_hook(keep)
    return terms


def draft_loss(target: Any, assistant: Any, batch: Batch, output: Any) -> torch.Tensor:
    """Loss of all draft steps: at p, step s (from 0) is given x[p+1+s] and must predict what the target says at p+1+s."""
    teacher = logits_of(target, output.last_hidden_state).softmax(-1)
    state, total = output.last_hidden_state, torch.zeros((), device=batch.ids.device)
    embed = target.get_input_embeddings()
    for step, weight in enumerate(STEP_WEIGHTS):
        with torch.autocast(batch.ids.device.type, torch.bfloat16):
            hidden, state = draft_states(assistant, embed(shifted(batch.ids, step + 1)), state, batch, output.shared_kv_states)
        hidden, state = hidden.float(), state.float()
        inside = shifted(batch.document, step + 2) == batch.document
        weights = torch.where(inside & (batch.document >= 0), shifted(batch.weights, step + 2).clamp(max=1.0), 0.0)
        weights[:, -(step + 2) :] = 0.0
        total = total + weight * _distil(assistant, hidden.flatten(0, 1), shifted(teacher, step + 1).flatten(0, 1), weights.flatten())
    return total / sum(STEP_WEIGHTS)


def _distil(assistant: Any, hidden: torch.Tensor, teacher: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Cross entropy against the teacher's distribution, plus the same over clusters for a centroid head.

    hidden [m, small], teacher [m, vocabulary] (probabilities), weights [m]."""
    loss = -(teacher * assistant.lm_head(hidden).log_softmax(-1)).sum(-1)
    head = assistant.masked_embedding
    if head is not None:
        mass = teacher[:, head.token_ordering].unflatten(-1, (head.num_centroids, -1)).sum(-1)
        loss = loss - (mass * head.centroids(hidden).log_softmax(-1)).sum(-1)
    return (loss * weights).sum() / weights.sum()


@torch.no_grad()
def cluster(assistant: Any) -> None:
    """Cluster the draft head's embeddings into equal clusters (k-means): sets ``token_ordering``, starts the centroids at their means."""
    head, table = assistant.masked_embedding, assistant.lm_head.weight.detach().float().cpu()
    size = head.vocab_size // head.num_centroids
    points = functional.normalize(table, dim=-1)
    centres = points[torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[: head.num_centroids]]
    for _ in range(8):
        tokens, places = linear_sum_assignment((points @ centres.T).repeat_interleave(size, 1), maximize=True)
        members = torch.from_numpy(tokens[places.argsort()]).view(-1, size)
        centres = functional.normalize(points[members].mean(1), dim=-1)
    head.token_ordering.copy_(members.flatten())
    head.centroids.weight.copy_(table[members].mean(1) * 2.0)
