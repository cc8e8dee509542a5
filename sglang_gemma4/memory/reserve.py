"""GPU memory that a server needs beside its weights and KV, calculated from the model's shape instead of SGLang's rule.

SGLang keeps 1.5 MB for each token of a chunk, at least 10 GB on large GPUs, and 9 % of the GPU more for the vision
tower. On an 80 GB GPU that is 18.9 GiB (11.8 with ``--mem-fraction-static 0.85``). Engines took less after their pools
had been allocated. The table shows 26B-A4B with MTP and chunks of 8,192 on an H200: the GPU's peak, minus what it
holds before the start, weights, KV and other processes.

| run | graphs | GiB |
| --- | --- | ---: |
| 2026-11-22-26b-kernels-serve | 5 decode sizes | 3.3 |
| 2026-11-23-26b-serve | 5 decode, 11 prefill | 3.2 |
| 2026-11-24-26b-beside-vllm, one request, then a mix of 80 | 29 decode, 11 prefill | 1.8, 3.3 |
| the same with mixed batches | and those of mixed batches | 5.1 |
| 2026-11-21-e2b-prefill, plain | all decode sizes | 3.9 |

Each part is the least that its tensors take, times :data:`FRAGMENTATION` for tensors alive at the same time and for
the allocator's gaps. Steps of different types follow one another, so only the largest working memory counts. Without
:data:`SAFETY` and prompts' logprobs, which these runs did not ask for, the sum is between 1.2 GiB below and 0.7 GiB
above these peaks. Hence a safety of 2 GiB.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_gemma4.attention import flash_limits
from sglang_gemma4.models import model_shape
from sglang_gemma4.patching import switches, uses

GIB, MIB = 2**30, 2**20
CONTEXT = 1.29 * GIB
"""GPU memory in use before a server loads anything: driver, CUDA context, communicators.

It is an H200's 140.40 GiB minus the 139.11 that servers found free before their weights (three runs of 2026-11-21 and
-22 agree to 0.01).
"""
LIBRARIES = 0.6 * GIB
"""Workspaces of cuBLAS and attention, and loaded kernels: what a serving process takes outside torch's allocator."""
FEATURES_ON_CARD = 28 * GIB
"""The smallest GPU, in bytes, that keeps image features (patch ``image_transport``).

They take 2.36 GiB (``feature_memory``). By SGLang's fraction a GPU of 24 GB has only 0.8 GiB for E4B's KV: there stock
would start and this package would not.
"""
DECODE_GRAPH, PREFILL_GRAPH = 12 * MIB, 16 * MIB
"""Bytes of a captured graph without its tensors.

E2B's 13 prefill graphs of up to 4,096 tokens hold 0.55 GiB (runs/2026-11-23-e2b-growth).
"""
FRAGMENTATION = 2.0
LOGPROB_ROWS = 2048
"""Prompt tokens whose logprobs SGLang computes at once (environ.py, SGLANG_LOGPROB_CHUNK_SIZE)."""
PATCHES = 16_384
"""Image patches that the tower should encode in one call, about 7 images of 280 soft tokens.

If less memory is free, calls are smaller (models/vision.py takes half of the free memory, at most 65,536 patches).
"""
SAFETY = 2 * GIB
MARGIN = 2 * GIB
"""Bytes left free in addition to the calculated reserve, unless the weights then leave no pool (``reserve_fallback``).

With the reserve alone an H100 reached 79.3 of 79.6 GiB, though 6 were free at first. With 0.2 GiB more it reached 78.1
(runs 2026-11-25-26b-h100-reserve, 2026-11-26-26b-h100-peer).
"""


@dataclass(frozen=True)
class Steps:
    """What a server runs: the largest step of each kind, and what is captured."""

    chunk: int  # prompt tokens of a prefill
    rows: int  # rows that are sampled from in a decode or verify step: requests times draft tokens
    decode_graphs: int  # number of captured batch sizes; 0: decode runs eagerly
    prefill_graphs: Sequence[int]  # captured token counts
    draft: bool  # speculation: a second model with its own graphs
    images: bool
    logprobs: bool = True  # requests may ask for logprobs of prompts
    joined: bool = False  # mixed batches, which have their own graph for each prefill size
    ordered_keys: int = 0  # tokens whose full-layer keys these graphs hold in order, for FlashAttention-4


@dataclass(frozen=True)
class Reserve:
    """Bytes by use. ``working`` is the working memory of the step that takes most, named by ``largest``."""

    libraries: float
    graphs: float
    working: float
    largest: str
    safety: float = SAFETY

    @property
    def total(self) -> float:
        """Bytes to keep out of weights and KV."""
        return self.libraries + self.graphs + self.working + self.safety

    def __str__(self) -> str:
        parts = ("libraries", self.libraries), ("CUDA graphs", self.graphs), (self.largest, self.working), ("safety", self.safety)
        return f"{self.total / GIB:.1f} GiB: " + ", ".join(f"{size / GIB:.1f} for {name}" for name, size in parts)


def of(text: Any, vision: Any, steps: Steps, ranks: int = 1) -> Reserve:
    """What a Gemma 4 server needs.

    Args:
        text: the language model's config (transformers' or SGLang's); ``vision``: the vision tower's, or None.
        ranks: tensor-parallel ranks, which divide heads and inner widths.
    """
    token = chunk_bytes_a_token(text, ranks)
    logits = steps.rows * text.vocab_size
    held = 6 * logits if steps.decode_graphs else 0  # bfloat16 and float32
    held += steps.decode_graphs * DECODE_GRAPH * (2 if steps.draft else 1)
    held += (len(steps.prefill_graphs) * PREFILL_GRAPH + max(steps.prefill_graphs, default=0) * token) * (2 if steps.joined else 1)
    held += steps.ordered_keys * full_key_bytes(text, ranks)
    uses = {
        f"a prefill of {steps.chunk} tokens": FRAGMENTATION * steps.chunk * token,
        f"sampling from {steps.rows} rows": 16 * logits,  # float32 logits and probabilities, sorted, with int64 indices
    }
    if steps.logprobs:  # rare, so SAFETY covers a part of them
        uses["logprobs of prompts"] = min(LOGPROB_ROWS, steps.chunk) * text.vocab_size * 10 - SAFETY
    if steps.images and vision is not None:
        uses[f"images, {PATCHES} patches at once"] = PATCHES * patch_bytes(vision)
    largest = max(uses, key=lambda name: uses[name])
    return Reserve(LIBRARIES, held, max(0.0, uses[largest]), largest)


def joined_graphs(sizes: Sequence[int], moe: bool, ranks: int) -> tuple[bool, int]:
    """``Steps.joined`` and ``Steps.ordered_keys`` of a server with prefill graphs of these sizes, as the switches ask.

    Args:
        moe: whether the model has experts. A dense model runs mixed batches only if the operator asks for them.
    """
    if not switches.is_on(switches.BESIDE) or not ((moe and ranks == 1) or uses.asks_beside()):
        return False, 0
    rows = max(sizes, default=0)
    flash = switches.part_is_on(flash_limits.IN_GRAPHS, "SGLANG_GEMMA4_FLASH_PREFILL") and rows >= flash_limits.SIZES[0]
    return True, rows + flash_limits.PREFIX_KEYS if flash else 0  # if FlashAttention-4 is measured faster than our kernel


def chunk_bytes_a_token(text: Any, ranks: int = 1) -> int:
    """Bytes of one token's bfloat16 activations where a layer is widest: in its attention or in its FFN."""
    hidden = text.hidden_size
    # The output of the QKV GEMM (keys and values together are at most as wide as queries), its normed and rotated
    # copies, and the attention's output.
    attention = max(5 * heads * width for heads, width in _heads(text)) // ranks
    ffn = 3 * text.intermediate_size * (2 if getattr(text, "use_double_wide_mlp", False) else 1) // ranks
    if getattr(text, "enable_moe_block", False):
        ffn += text.top_k_experts * (3 * text.moe_intermediate_size // ranks + hidden) + 2 * hidden  # and float32 sums
    per_layer = 2 * text.num_hidden_layers * (getattr(text, "hidden_size_per_layer_input", None) or 0)
    return int(2 * (3 * hidden + max(attention, ffn) + per_layer))


def full_key_bytes(text: Any, ranks: int = 1) -> int:
    """Bytes of a full layer's bfloat16 key and value of one token, on one of ``ranks``."""
    if getattr(text, "swa_head_dim", None):
        kv_heads, width = text.num_key_value_heads, text.head_dim
    else:
        kv_heads, width = max((layer.kv_heads, layer.head_dim) for layer in model_shape.layers(text) if layer.window is None)
    return int(4 * max(1, kv_heads // ranks) * width)


def _heads(text: Any) -> list[tuple[int, int]]:
    """Query heads and their width for each layer type of SGLang's or transformers' text config."""
    if getattr(text, "swa_head_dim", None):  # SGLang's, whose head_dim is the full layers'
        return [(text.num_attention_heads, text.head_dim), (text.num_attention_heads, text.swa_head_dim)]
    return [(layer.heads, layer.head_dim) for layer in model_shape.layers(text)]


def patch_bytes(vision: Any) -> int:
    """Bytes of one image patch where the tower is widest, as ``models.vision.most_patches`` counts them.

    A unified model has no tower: it projects the pixels of several patches at once to a soft token's features.
    """
    embedded = getattr(vision, "mm_embed_dim", None)
    if embedded:
        return int(2 * (2 * 3 * vision.patch_size**2 + 8 * embedded / vision.pooling_kernel_size**2))
    heads = vision.num_attention_heads * vision.head_dim
    pixels = 3 * vision.patch_size**2
    return int(2 * (14 * heads + 6 * vision.intermediate_size + 8 * vision.hidden_size) + 12 * pixels + 8 * vision.hidden_size)


def fraction(kept: float, card: float) -> float:
    """``--mem-fraction-static`` that keeps ``kept`` bytes on a GPU of ``card`` bytes.

    SGLang multiplies the fraction by what is free at first.

    Raises:
        ValueError: the GPU does not have more than ``kept`` bytes free.
    """
    free = card - CONTEXT
    if kept >= free:
        raise ValueError(f"{kept / GIB:.1f} GiB are to be kept of a GPU with {free / GIB:.1f} GiB free; take a smaller chunk or model")
    return int(1000 * (1 - kept / free)) / 1000


def sglang_fraction(card: float, chunk: int, most_decode: int, prefill_graphs: int, vision: Any, ranks: int = 1) -> float:
    """SGLang's ``--mem-fraction-static`` if none is given, for one node without DP attention.

    See arg_groups/memory_hook.py:281, 417.
    """
    megabytes = card / MIB
    kept = 512 + 1.5 * max(chunk, 2048) + ranks / 8 * 1024 + 2 * most_decode + 8 * prefill_graphs
    if megabytes > 60 * 1024:
        kept = max(kept, 10 * 1024)
    found = round((megabytes - kept) / megabytes, 3)
    if vision is None:
        return found
    complexity = vision.num_hidden_layers * vision.hidden_size**2 / (24 * 1024**2)
    return float(found * 0.95 * max(0.8, min(1.05, 1 - 0.1 * (complexity - 1))))
