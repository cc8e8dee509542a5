"""Runs transformers' Gemma 4 over packed rows: positions, and additive masks per layer type."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sglang_gemma4.tiny.batches import Array, Pictures, blocks
from sglang_gemma4.tiny.media_rows import FIRST_SOUND, Media


@dataclass
class Batch:
    """One step's rows on the device; ``masks`` are additive [batch, 1, length, length] per layer type."""

    ids: torch.Tensor
    positions: torch.Tensor
    weights: torch.Tensor
    document: torch.Tensor
    masks: dict[str, torch.Tensor]
    pixel_values: torch.Tensor | None = None
    image_position_ids: torch.Tensor | None = None
    input_features: torch.Tensor | None = None
    input_features_mask: torch.Tensor | None = None


def masks_of(document: torch.Tensor, block: torch.Tensor, window: int, bidirectional: bool) -> dict[str, torch.Tensor]:
    """Masks that are causal within a document. Sliding layers see ``window`` keys, and attend in both directions
    inside an image; full layers stay causal (transformers' create_masks_for_vision_model).

    Args:
        document, block: [batch, length], as in :data:`batches.TOKEN` and from :func:`batches.blocks`.
    """
    at = torch.arange(document.shape[1], device=document.device)
    same = document[:, :, None] == document[:, None, :]
    causal = at[:, None] >= at[None, :]
    reach = causal
    if bidirectional:
        reach = causal | ((block[:, :, None] == block[:, None, :]) & (block >= 0)[:, None, :])
    seen = {"full_attention": same & causal, "sliding_attention": same & reach & (at[None, :] > at[:, None] - window)}
    zero = torch.zeros((), device=document.device)
    return {name: torch.where(mask, zero, torch.finfo(torch.float32).min)[:, None] for name, mask in seen.items()}


def to_device(rows: Array, pictures: Pictures | None, config: Any, device: str) -> Batch:
    """Upload rows [batch, length] and build the inputs of the forward pass; positions restart with each document."""

    def move(array: Array, kind: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device=device, dtype=kind)

    block, begins = blocks(rows["picture"])
    document = move(rows["document"], torch.int32)
    at = torch.arange(document.shape[1], device=device).expand_as(document)
    fresh = functional.pad(document[:, 1:] != document[:, :-1], (1, 0), value=True)
    positions = at - torch.where(fresh, at, 0).cummax(dim=1).values
    masks = masks_of(document, move(block, torch.int32), config.sliding_window, config.use_bidirectional_attention == "vision")
    batch = Batch(move(rows["id"], torch.long), positions, move(rows["weight"], torch.float32), document, masks)
    shown = rows["picture"][begins]
    if pictures is not None and len(shown):
        batch.pixel_values = move(pictures.patches[shown], torch.float32)
        batch.image_position_ids = move(pictures.positions[shown], torch.long)
    heard = _begun(rows["picture"])
    if isinstance(pictures, Media) and len(heard):
        lengths = pictures.sounds.lengths[heard]
        batch.input_features = move(pictures.sounds.frames[heard, : lengths.max()], torch.float32)
        batch.input_features_mask = move(np.arange(lengths.max()) < lengths[:, None], torch.bool)
    return batch


def _begun(picture: Array) -> Array:
    """Indices of the audio clips in rows [batch, length], in the order of their soft tokens; two clips are never adjacent."""
    sound = picture <= FIRST_SOUND
    begins = sound & ~np.pad(sound, ((0, 0), (1, 0)))[:, :-1]
    found: Array = FIRST_SOUND - picture[begins]
    return found


def hidden_states(model: Any, batch: Batch, shared_kv: bool = False, autocast: bool = False) -> Any:
    """Run a target's ``model``, unified or not, over packed rows; the output holds last_hidden_state [batch, length, hidden].

    ``autocast`` computes GEMMs and attention in bfloat16.
    """
    with torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=autocast):
        return model.model(
            input_ids=batch.ids,
            attention_mask=batch.masks,
            position_ids=batch.positions,
            pixel_values=batch.pixel_values,
            image_position_ids=batch.image_position_ids,
            input_features=batch.input_features,
            input_features_mask=batch.input_features_mask,
            use_cache=False,
            return_shared_kv_states=shared_kv,
        )


def logits_of(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """The soft-capped logits of the target."""
    cap = model.config.text_config.final_logit_softcapping
    return torch.tanh(model.lm_head(hidden) / cap) * cap


def keep_norms_in_float32() -> None:
    """Let transformers' RMSNorm return float32 in this process, with one kernel: under autocast attention needs one dtype of q, k, v."""
    from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm
    from transformers.models.gemma4_unified.modeling_gemma4_unified import Gemma4UnifiedRMSNorm

    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden_states.float(), hidden_states.shape[-1:], self.weight if self.with_scale else None, self.eps)

    for norm in (Gemma4RMSNorm, Gemma4UnifiedRMSNorm):
        norm.forward = forward
