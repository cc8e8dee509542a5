"""Token counts of prefill graphs: as far as launches take longer than the GPU's work, in steps that bound the padding.

The launches of an eager prefill take the host the same time at any size, and a GPU that computes it faster waits for
them. There a graph is faster, and padding is free as long as the padded prefill takes the GPU less time, too. Each size
costs two forwards and a capture.
"""

from typing import Any

LARGEST = 4096
"""Most tokens. Static inputs and activations of the graphs' pool grow with it, and above it there is nothing to gain.

E2B with fast prefill takes the GPU 8 microseconds a token, 32 ms for this size (``runs/2026-11-22-e2b-yoco``).
"""
SMALLEST = 8
DOUBLES_UP_TO = 512
"""Tokens up to which each size is twice the one before.

This is the most that SGLang pads (``_MAX_PREFILL_CUDA_GRAPH_PADDING_FACTOR``).
"""
LAUNCH_SECONDS = 1.4e-3
"""Estimated time that the host takes to launch one layer of an eager prefill.

Stock's time to first token with E2B's 35 layers was 52 to 58 ms, from 128 tokens to 4,000
(``runs/2026-11-22-e2b-images-ttft``). A few ms of it are the server's.
"""
OPERATIONS_A_SECOND = 4e14
"""What prefills reached on an H200: 4.2e14 on E4B (``runs/2026-11-22-e4b-yoco``), and 3.3e14 on 26B-A4B.

The latter is from ``runs/2026-11-22-26b-experts``. A slower GPU gains less at the largest sizes, and only loses the
time of their capture.
"""


def ladder(limit: int) -> list[int]:
    """The sizes up to ``limit``, ascending: doubling up to 512, two per octave above.

    Above 512 at most a third of a padded batch is padding.
    """
    sizes, size = [], SMALLEST
    while size <= limit:
        sizes.append(size)
        if size >= DOUBLES_UP_TO and size + size // 2 <= limit:
            sizes.append(size + size // 2)
        size *= 2
    return sizes


def capture_sizes(limit: int) -> list[int]:
    """The sizes of :func:`ladder`, and ``limit`` itself.

    Raises:
        ValueError: ``limit`` is not positive.
    """
    if limit < 1:
        raise ValueError(f"the largest prefill graph has {limit} tokens; give at least 1")
    return sorted({*ladder(limit), limit})


def products_a_token(config: Any, layers: int) -> int:
    """Multiplications per token in the GEMMs of ``layers`` layers of a text config: about their active parameters.

    All layers count as sliding ones, and keys and values as much as queries. That is an overestimate where keys and
    values have fewer heads.
    """
    ffn = config.intermediate_size
    if getattr(config, "enable_moe_block", False):
        ffn += config.top_k_experts * config.moe_intermediate_size
    width = getattr(config, "swa_head_dim", None) or config.head_dim  # SGLang moves the full layers' to head_dim
    return int(layers * config.hidden_size * 3 * (ffn + config.num_attention_heads * width))


def worth_up_to(config: Any, fast_prefill: bool = False, ranks: int = 1) -> int:
    """The largest size of :func:`ladder` that the GPU computes in less time than the host needs to launch it.

    Args:
        config: the language model's (a Gemma 4 text config).
        fast_prefill: layers that share KV see few rows: they cost launches, but hardly any GPU time.
        ranks: tensor-parallel ranks, which divide the GPU's work but not the host's.
    """
    layers = config.num_hidden_layers
    computed = layers - (getattr(config, "num_kv_shared_layers", 0) or 0) * fast_prefill
    card_seconds = 2 * products_a_token(config, computed) / OPERATIONS_A_SECOND / ranks
    tokens = int(layers * LAUNCH_SECONDS / card_seconds)
    return ladder(max(SMALLEST, min(tokens, LARGEST)))[-1]
