"""Token counts of prefill graphs: as far as launches take longer than the card's work, in steps that bound the padding.

The launches of an eager prefill take the host the same time at any size; a card that computes it in less waits for them. There a graph
gains, and padding is free as long as the padded prefill takes the card less time too. Each size costs two forwards and a capture.
"""

from typing import Any

LARGEST = 4096
"""Tokens. Static inputs and the activations of the graphs' pool grow with the largest size, and above it there is nothing to gain: at the
8 microseconds a token of E2B with fast prefill (``runs/2026-11-22-e2b-yoco``) the card has 32 ms to do here, 63 in a chunk of 8,192."""
SMALLEST = 8
DOUBLES_UP_TO = 512
"""Tokens. Up to here each size is twice the one before, the most that SGLang pads (``_MAX_PREFILL_CUDA_GRAPH_PADDING_FACTOR``)."""
LAUNCH_SECONDS = 1.4e-3
"""Of the host, to launch one layer of an eager prefill. An estimate: a first token of E2B's 35 layers took stock 52 to 58 ms, from 128
tokens to 4,000 (``runs/2026-11-22-e2b-images-ttft``), a few of which are the server's."""
OPERATIONS_A_SECOND = 4e14
"""What prefills reached on an H200: E4B's 11 microseconds a token (``runs/2026-11-22-e4b-yoco``) are 4.2e14, 26B-A4B's 18.6
(``runs/2026-11-22-26b-experts``) 3.3e14. A slower card gains less at the largest sizes, and loses nothing but their capture."""


def ladder(limit: int) -> list[int]:
    """The sizes up to ``limit``, ascending: doubling up to 512, two an octave above, where at most a third of a padded batch is padding."""
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
    """Multiplications a token in the dense products of ``layers`` layers of a text config: about their active parameters.

    All layers count as sliding ones, and keys and values as much as queries, which overestimates them where they have fewer heads.
    """
    ffn = config.intermediate_size
    if getattr(config, "enable_moe_block", False):
        ffn += config.top_k_experts * config.moe_intermediate_size
    width = getattr(config, "swa_head_dim", None) or config.head_dim  # SGLang moves the full layers' to head_dim
    return int(layers * config.hidden_size * 3 * (ffn + config.num_attention_heads * width))


def worth_up_to(config: Any, fast_prefill: bool = False, ranks: int = 1) -> int:
    """The largest size of :func:`ladder` that the card computes in less time than the host needs to launch it.

    Args:
        config: the language model's (a Gemma 4 text config).
        fast_prefill: layers that share KV see few rows: they cost launches, but the card hardly any time.
        ranks: of tensor parallelism, which divide the card's work but not the host's.
    """
    layers = config.num_hidden_layers
    computed = layers - (getattr(config, "num_kv_shared_layers", 0) or 0) * fast_prefill
    card_seconds = 2 * products_a_token(config, computed) / OPERATIONS_A_SECOND / ranks
    tokens = int(layers * LAUNCH_SECONDS / card_seconds)
    return ladder(max(SMALLEST, min(tokens, LARGEST)))[-1]
