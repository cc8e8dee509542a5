"""Whether a checkpoint's head is its embedding, as transformers 5.19 decides it.

``tie_word_embeddings`` at the top level of config.json says so; what ``text_config`` says is not asked. A head that the checkpoint has all
the same, with other values, is used (``PreTrainedModel.tie_weights``).

No SGLang in here.
"""

import math
from collections.abc import Mapping

from sglang_gemma4.checkpoint.safetensors_files import Stored
from sglang_gemma4.checkpoint.tensor_layout import Config, is_tied, plain

SIZES = {"BF16": 2, "F16": 2, "F32": 4}
"""Bytes of a value by safetensors' name of its type."""
SAMPLES = 2048
"""Rows that are compared: a head that was trained apart differs in all that a token was ever trained in."""
HEAD, EMBEDDING = "lm_head.weight", "language_model.embed_tokens.weight"


def tied(config: Config, stored: Mapping[str, Stored] | None) -> bool:
    """Whether the embedding is the head.

    Args:
        stored: the checkpoint's tensors, where they are known.
    """
    if not is_tied(config):
        return False
    ours = {plain(name): tensor for name, tensor in (stored or {}).items() if name.endswith((HEAD, "embed_tokens.weight"))}
    return HEAD not in ours or EMBEDDING not in ours or _are_alike(ours[HEAD], ours[EMBEDDING])


def _are_alike(one: Stored, other: Stored) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape) or one.dtype not in SIZES:
        return False
    step = max(1, one.shape[0] // SAMPLES)
    size = SIZES[one.dtype] * math.prod(one.shape[1:])
    with one.file.open("rb") as first, other.file.open("rb") as second:
        for row in range(0, one.shape[0], step):
            first.seek(one.start + row * size)
            second.seek(other.start + row * size)
            if first.read(size) != second.read(size):
                return False
    return True
