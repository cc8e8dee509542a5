"""Running transformers' Gemma 4 over packed rows: positions, additive masks per layer type, and faster equals of two modules."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sglang_gemma4.tiny.batches import Rows


@dataclass
class Pictures:
    """The pool of images on the device: patches [n, patches, pixels], positions [n, patches, 2]."""

    patches: torch.Tensor
    positions: torch.Tensor


@dataclass
class Batch:
    """One step's rows on the device; `masks` are additive [batch, 1, length, length] per layer type."""

    ids: torch.Tensor
    positions: torch.Tensor
    weights: torch.Tensor
    document: torch.Tensor
    masks: dict[str, torch.Tensor]
    pixel_values: torch.Tensor | None = None
    image_position_ids: torch.Tensor | None = None


def masks_of(document: torch.Tensor, block: torch.Tensor, window: int, bidirectional: bool) -> dict[str, torch.Tensor]:
    """Causal within a document; sliding layers see `window` keys, and image spans both ways (transformers'
    create_masks_for_vision_model: full layers stay causal).

    document, block: [batch, length]."""
    n = document.shape[1]
    at = torch.arange(n, device=document.device)
    same = document[:, :, None] == document[:, None, :]
    causal = at[:, None] >= at[None, :]
    full = same & causal
    reach = causal
    if bidirectional:
        reach = causal | ((block[:, :, None] == block[:, None, :]) & (block >= 0)[:, None, :])
    sliding = same & reach & (at[None, :] > at[:, None] - window)
    zero = torch.zeros((), device=document.device)
    return {
        name: torch.where(mask, zero, torch.finfo(torch.float32).min)[:, None]
        for name, mask in (("full_attention", full), ("sliding_attention", sliding))
    }


def to_device(rows: Rows, pictures: Pictures | None, config: Any, device: str) -> Batch:
    """Upload rows and build what the forward pass needs; positions restart with each document."""

    def move(a: np.ndarray, kind: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(a)).to(device=device, dtype=kind)

    document, block = move(rows.document, torch.int32), move(rows.block, torch.int32)
    at = torch.arange(document.shape[1], device=device).expand_as(document)
    fresh = functional.pad(document[:, 1:] != document[:, :-1], (1, 0), value=True)
    positions = at - torch.where(fresh, at, 0).cummax(dim=1).values
    masks = masks_of(document, block, config.sliding_window, config.use_bidirectional_attention == "vision")
    batch = Batch(move(rows.ids, torch.long), positions, move(rows.weights, torch.float32), document, masks)
    wanted = [i for row in rows.images for i in row]
    if wanted and pictures is not None:
        index = torch.tensor(wanted, device=device)
        batch.pixel_values, batch.image_position_ids = pictures.patches[index].float(), pictures.positions[index].long()
    return batch


def hidden_states(model: Any, batch: Batch, shared_kv: bool = False, autocast: bool = False) -> Any:
    """`Gemma4ForConditionalGeneration.model` over packed rows: the output holds last_hidden_state [batch, length, hidden].

    `autocast` computes matrix products and attention in bfloat16."""
    with torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=autocast):
        return model.model(
            input_ids=batch.ids,
            attention_mask=batch.masks,
            position_ids=batch.positions,
            pixel_values=batch.pixel_values,
            image_position_ids=batch.image_position_ids,
            use_cache=False,
            return_shared_kv_states=shared_kv,
        )


def logits_of(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """The soft-capped logits of the target."""
    cap = model.config.text_config.final_logit_softcapping
    return torch.tanh(model.lm_head(hidden) / cap) * cap


def _dense_experts(self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
    """All experts over all tokens, weighted by zero where not chosen: equal to the loop, without its host syncs."""
    weights = torch.zeros(hidden_states.shape[0], self.num_experts, device=hidden_states.device, dtype=top_k_weights.dtype)
    weights = weights.scatter(1, top_k_index, top_k_weights).to(hidden_states.dtype)
    gate, up = (hidden_states @ self.gate_up_proj.flatten(0, 1).T).unflatten(1, (self.num_experts, -1)).chunk(2, dim=-1)
    return (self.act_fn(gate) * up * weights[..., None]).flatten(1) @ self.down_proj.transpose(1, 2).flatten(0, 1)


def _fused_norm(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    hidden_states = hidden_states.float()  # as the original computes; under autocast the result stays float32
    return functional.rms_norm(hidden_states, hidden_states.shape[-1:], self.weight if self.with_scale else None, self.eps)


def speed_up() -> None:
    """Replace, in this process, the experts' loop and the pointwise RMSNorm of transformers by equals that launch less."""
    from transformers.models.gemma4 import modeling_gemma4 as m

    m.Gemma4TextExperts.forward = _dense_experts
    m.Gemma4RMSNorm.forward = _fused_norm
