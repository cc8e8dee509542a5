"""Random weights of realistic spread, for timing real sizes without their checkpoints.

SGLang's own dummy format draws uniform(±1e-3): every token becomes the same one and eight experts take all the work.
Here a linear layer keeps the variance of its input (normal, std = 1/sqrt(fan_in)), norms are one, and the query and
key norms are head_dim^-1/4, so that attention logits (Gemma 4 scales by 1) have unit spread.

The head is tied to the embedding, so a token's own embedding in the residual stream raises that token's logit again.
At the scale of the layers' output it would win against all 262,144 others, and one token would repeat forever.
Embeddings are therefore small, and the final norm compensates: logits have a standard deviation of 2.
"""

import hashlib
from collections.abc import Collection
from typing import Any

from sglang_gemma4.tiny import families, spread_quantised

EMBEDDING_SPREAD = 0.1  # standard deviation of the scaled embedding; what each layer adds has 1
FINAL_NORM = 20.0

_KEEP = ("input_min", "input_max", "output_min", "output_max", "inv_freq", "cos_sin_cache", "embed_scale", "softcap")
_ZERO = ("std_bias",)
_HEADS = ("embed_tokens.weight", "lm_head.weight")
_FINAL_NORMS = ("model.norm.weight", "language_model.norm.weight")
_ONE = ("layer_scalar", "std_scale", "per_expert_scale", "router.scale")


def fill(model: Any, seed: int = 0, leave: Collection[str] = ()) -> None:
    """Fill every floating-point parameter and known buffer of `model` in place, except those named in `leave`; any device, dtype and class.

    A tensor's values depend only on `seed`, its name and its shape, so two processes agree on replicated tensors.
    The centroid head's `token_ordering` becomes a permutation of the vocabulary. Quantised weights:
    ``spread_quantised``."""
    import torch

    with torch.no_grad():
        state = model.state_dict()
        for name, tensor in state.items():
            if name in leave:
                continue
            digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            generator = torch.Generator(device=tensor.device).manual_seed(int.from_bytes(digest[:7], "little"))
            if name.endswith("token_ordering"):
                tensor.copy_(torch.randperm(tensor.numel(), generator=generator, device=tensor.device))
            elif spread_quantised.fill(name, tensor, state, generator):
                continue
            elif torch.is_floating_point(tensor) and not name.endswith(_KEEP):
                _fill_one(name, tensor, generator)


def roughen(model: Any, seed: int) -> None:
    """Give a filled model noise on every norm, scale and bias, fixed layer scalars and finite clips: no feature is an identity."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def noise(like: Any, spread: float) -> Any:
        return spread * torch.randn(like.shape, generator=generator)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.mul_(1.0 + noise(parameter, 0.1))
                if name.endswith("bias"):
                    parameter.add_(noise(parameter, 0.1))
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.fill_(families.LAYER_SCALARS[int(name.split("layers.")[1].split(".")[0])])
            elif name.endswith("std_bias"):
                buffer.copy_(noise(buffer, 0.5))
            elif name.endswith("std_scale"):
                buffer.copy_(1.0 + noise(buffer, 0.2))
            else:
                clip(name, buffer)


def clip(name: str, buffer: Any) -> None:
    """If ``buffer`` is a bound of a clipped linear, set it to a value that some inputs and outputs reach."""
    for end, bound in (("input", families.CLIP_INPUT), ("output", families.CLIP_OUTPUT)):
        if name.endswith((f"{end}_min", f"{end}_max")):
            buffer.fill_(-bound if name.endswith("min") else bound)


def _fill_one(name: str, tensor: Any, generator: Any) -> None:
    import torch

    if name.endswith(_ZERO) or name.endswith(".bias"):
        tensor.zero_()
    elif "q_norm" in name or "k_norm" in name:
        tensor.fill_(tensor.shape[-1] ** -0.25)
    elif name.endswith(_FINAL_NORMS):
        tensor.fill_(FINAL_NORM)
    elif tensor.dim() <= 1 or "norm" in name.rsplit(".", 2)[-2:][0] or name.endswith(_ONE):
        tensor.fill_(1.0)
    elif tensor.element_size() < 2:  # float8 has no sampler
        normal = torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float32)
        tensor.copy_((normal * tensor.shape[-1] ** -0.5).to(tensor.dtype))
    else:
        spread = EMBEDDING_SPREAD if name.endswith(_HEADS) else 1.0
        tensor.normal_(0.0, spread * tensor.shape[-1] ** -0.5, generator=generator)
