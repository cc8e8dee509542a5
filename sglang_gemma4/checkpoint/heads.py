"""Whether a checkpoint's head is its embedding, as transformers 5.19 decides it.

``tie_word_embeddings`` at the top level of config.json decides; the value in ``text_config`` is ignored. If the
checkpoint holds a head with other values all the same, that head is used (``PreTrainedModel.tie_weights``).

SGLang is not imported.
"""

import math
from collections.abc import Mapping

from sglang_gemma4.checkpoint.safetensors_files import Stored
from sglang_gemma4.checkpoint.tensor_layout import Config, is_tied, plain

SIZES = {"BF16": 2, "F16": 2, "F32": 4}
"""Bytes per value, by safetensors dtype name."""
SAMPLES = 2048
"""About how many rows are compared. A head trained separately differs in every row whose token was ever trained."""
HEAD, EMBEDDING = "lm_head.weight", "language_model.embed_tokens.weight"


def tied(config: Config, stored: Mapping[str, Stored] | None) -> bool:
    """Whether the embedding is the head.

    Args:
        stored: the checkpoint's tensors, or None if they are unknown.
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
