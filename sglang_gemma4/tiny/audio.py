"""The tiny E2B with an audio tower: two conformer layers with random weights, added to the trained language and vision parts.

An audio clip's soft tokens mean nothing to the language model, but they change its logits, which can be compared with
transformers'.
"""

import shutil
from pathlib import Path
from typing import Any

from sglang_gemma4.tiny import checkpoints, spread_weights

FAMILY = "tiny-e2b"
CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "subsampling_conv_channels": [128, 8],  # transformers sizes the layer after the convolutions by the first: 128 mel bins make it 128
    "output_proj_dims": 96,
    "use_clipped_linears": True,
}
PARTS = ("audio_tower.", "embed_audio.")


def build(seed: int = 0) -> Any:
    """Build the ``Gemma4ForConditionalGeneration`` in float32; no norm, scale or clip of the audio tower is an identity."""
    import torch
    from transformers import AutoConfig, Gemma4AudioConfig, Gemma4ForConditionalGeneration

    shipped = checkpoints.SHIPPED / FAMILY
    config = AutoConfig.from_pretrained(shipped)
    config.audio_config = Gemma4AudioConfig(**CONFIG)
    model = Gemma4ForConditionalGeneration.from_pretrained(shipped, config=config, dtype=torch.float32).eval()
    state = model.state_dict()
    new = {name: tensor for name, tensor in state.items() if name.removeprefix("model.").startswith(PARTS)}
    spread_weights.fill(model, seed, leave=state.keys() - new.keys())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in new.items():
            if tensor.dim() == 1:
                tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
            spread_weights.clip(name, tensor)
    return model


def write(path: Path, seed: int = 0) -> Path:
    """Write the checkpoint to ``path`` and the shipped assistant to ``PATH-assistant``."""
    import torch

    shutil.copytree(checkpoints.SHIPPED / FAMILY, path)
    shutil.copytree(checkpoints.SHIPPED / f"{FAMILY}-assistant", path.with_name(f"{path.name}-assistant"))
    build(seed).to(torch.bfloat16).save_pretrained(path)
    return path
