"""Training one tiny MTP assistant against its frozen target: three draft steps from every position, teacher-forced."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from sglang_gemma4.tiny import families, spread_weights
from sglang_gemma4.tiny.drafting import draft_states, matched_drafts, shifted
from sglang_gemma4.tiny.packed_forward import Batch, hidden_states, logits_of
from sglang_gemma4.tiny.train_target import Course, fit

STEP_WEIGHTS = (1.0, 0.7, 0.5)  # of the draft steps
RECLUSTER, FIRST_LOOK, LOOK_EVERY = 150, 200, 20


def build(name: str, seed: int) -> Any:
    """An untrained Gemma4AssistantForCausalLM (float32) with spread and roughened weights."""
    from transformers import Gemma4TextConfig
    from transformers.models.gemma4_assistant import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

    config = Gemma4AssistantConfig(text_config=Gemma4TextConfig(**families.assistant_text(name)), **families.assistant(name))
    config._attn_implementation = "sdpa"
    model = Gemma4AssistantForCausalLM(config)
    spread_weights.fill(model, seed)
    spread_weights.roughen(model, seed)
    return model


@torch.no_grad()
def cluster(assistant: Any) -> None:
    """Balanced clusters of the draft head's embeddings: sets `token_ordering`, starts the centroids at their means."""
    head, table = assistant.masked_embedding, assistant.lm_head.weight.detach().float().cpu()
    n, size = head.num_centroids, head.vocab_size // head.num_centroids
    points = functional.normalize(table, dim=-1)
    centres = points[torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[:n]].clone()
    members = torch.zeros(n, size, dtype=torch.long)
    for _ in range(8):
        similarity = points @ centres.T
        counts, taken, filled = [0] * n, torch.zeros(len(points), dtype=torch.bool), 0
        for flat in similarity.flatten().argsort(descending=True).tolist():
            token, c = divmod(flat, n)
            if counts[c] < size and not taken[token]:
                members[c, counts[c]] = token
                counts[c], taken[token], filled = counts[c] + 1, True, filled + 1
                if filled == len(points):
                    break
        centres = functional.normalize(points[members].mean(1), dim=-1)
    head.token_ordering.copy_(members.flatten())
    head.centroids.weight.copy_(table[members].mean(1) * 2.0)


def distil(assistant: Any, hidden: torch.Tensor, teacher: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Cross entropy against the teacher's distribution, and the same over clusters for a centroid head.

    hidden [m, small], teacher [m, vocabulary] (probabilities), weights [m]."""
    loss = -(teacher * assistant.lm_head(hidden).log_softmax(-1)).sum(-1)
    head = assistant.masked_embedding
    if head is not None:
        mass = teacher[:, head.token_ordering].unflatten(-1, (head.num_centroids, -1)).sum(-1)
        loss = loss - (mass * head.centroids(hidden).log_softmax(-1)).sum(-1)
    return (loss * weights).sum() / weights.sum()


def step_loss(target: Any, assistant: Any, batch: Batch, output: Any) -> torch.Tensor:
    """All draft steps: at p, step s (from 0) is given x[p+1+s] and must predict what the target says at p+1+s."""
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
        total = total + weight * distil(assistant, hidden.flatten(0, 1), shifted(teacher, step + 1).flatten(0, 1), weights.flatten())
    return total / sum(STEP_WEIGHTS)


def train(
    name: str, target: Any, assistant: Any, course: Course, accept: Callable[[Any], dict[str, float]], accept_until: float
) -> dict[str, Any]:
    """Train the assistant in place; a centroid head is clustered at the start and again at `RECLUSTER`.

    `accept(assistant)` returns the measured accept lengths; training stops once their "all" reaches `accept_until`, so that
    a later change can show in both directions."""
    target.requires_grad_(False)
    outputs: list[Any] = [None]

    def loss_of(step: int, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        if assistant.masked_embedding is not None and step in (1, RECLUSTER + 1):
            cluster(assistant)
        with torch.no_grad():
            output = outputs[0] = hidden_states(target, batch, shared_kv=True, autocast=True)
            output.last_hidden_state = output.last_hidden_state.float()
        loss = step_loss(target, assistant, batch, output)
        return loss, loss

    def describe(batch: Batch) -> str:
        written = (batch.weights >= 1.0) & (batch.document >= 0)
        mean = float(matched_drafts(target, assistant, batch, outputs[0])[written].float().mean())
        return f"teacher-forced accept {1 + mean:.3f}"

    def done(step: int) -> bool:
        if step < FIRST_LOOK or step % LOOK_EVERY:
            return False
        seen = accept(assistant)
        print(f"{name} assistant step {step} accept {seen}", flush=True)
        return seen["all"] >= accept_until

    return fit(f"{name} assistant", assistant, target.config.text_config, course, loss_of, describe, done)
