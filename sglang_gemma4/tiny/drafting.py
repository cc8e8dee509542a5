"""Multi-token drafting over all positions at once, as transformers' SinglePositionMultiTokenCandidateGenerator does one by one.

At position p the assistant sees the target's last hidden state h[p] (after the final norm), the next committed token
x[p+1], and the target's keys and values up to p. Every draft step runs at the fixed position p+1:
step 1 takes concat(target_embedding(x[p+1]), h[p]), later steps the drafted token and the assistant's own projected state.
"""

from typing import Any

import torch

from sglang_gemma4.tiny.families import DRAFT_STEPS
from sglang_gemma4.tiny.packed_forward import Batch


def draft_states(assistant: Any, embeds: torch.Tensor, state: torch.Tensor, batch: Batch, shared: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Run one draft step at every position: (assistant hidden [b, n, small], projected state [b, n, backbone])."""
    z = assistant.pre_projection(torch.cat([embeds, state], dim=-1))
    hidden = assistant.model(
        inputs_embeds=z, attention_mask=batch.masks, position_ids=batch.positions + 1, shared_kv_states=dict(shared), use_cache=False
    ).last_hidden_state
    return hidden, assistant.post_projection(hidden)


def head_logits(assistant: Any, hidden: torch.Tensor) -> torch.Tensor:
    """The logits of the assistant's head; outside the chosen centroids they are -1e9."""
    head = assistant.masked_embedding
    logits = assistant.lm_head(hidden)
    if head is None:
        return logits
    top = head.centroids(hidden).topk(head.centroid_intermediate_top_k, dim=-1).indices
    tokens = head.token_ordering.view(head.num_centroids, -1)[top].flatten(-2)
    allowed = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, tokens, True)
    return torch.where(allowed, logits, -1e9)


def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """x[p + by] at position p; the last value is repeated at the end."""
    return torch.cat([x[:, by:], x[:, -1:].expand(-1, by, *x.shape[2:])], dim=1)


@torch.no_grad()
def matched_drafts(model: Any, assistant: Any, batch: Batch, output: Any, steps: int = DRAFT_STEPS) -> torch.Tensor:
    """[batch, length]: how many of `steps` greedy drafts from position p equal x[p+2], x[p+3], ... of the rows."""
    embed, state = model.get_input_embeddings(), output.last_hidden_state
    token = shifted(batch.ids, 1)
    alive = torch.ones_like(batch.ids, dtype=torch.bool)
    matched = torch.zeros_like(batch.ids)
    for step in range(steps):
        hidden, state = draft_states(assistant, embed(token), state, batch, output.shared_kv_states)
        token = head_logits(assistant, hidden).argmax(-1)
        alive = alive & (token == shifted(batch.ids, step + 2))
        matched += alive
    return matched


def verify_rounds(matched: list[int], tokens: int) -> list[int]:
    """Tokens committed by each verify round, bonus token included, until `tokens` are committed after the prefill's one.

    `matched[i]` belongs to the round whose last committed token is output token i; output token 0 comes from prefill."""
    committed: list[int] = []
    while (at := sum(committed)) < tokens:
        committed.append(matched[at] + 1)
    return committed
