"""The least bytes and FLOPs of one Gemma 4 step by kernel category, from config.json, and the time a GPU needs for them.

Counted are weights read once per step, every kernel's input read and output written once, the KV that the queries can
see, and the KV
written. Of the experts (and the rows of an assistant's ordered embeddings) those count that tokens hit on average
under independent uniform
routing; tokens that route alike need fewer. Not counted is what a better kernel would not move (masks, indices,
paddings, a second
read). Two kernels that could be fused are counted with the tensor between them, so a fused one can beat the floor of
its category, but
never the whole step's weights and KV. A multiplication and an addition are two FLOPs: 2·m·n·k for a GEMM.
The LM head and the router are GEMMs like any other and are listed under "dense gemm", as their kernels are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sglang_gemma4.kernels.kv_cache.formats import SCALE_BYTES, named
from sglang_gemma4.models import gptq_config
from sglang_gemma4.models.config_files import read_config
from sglang_gemma4.models.model_shape import ConfigJson, Layer, distinct, keys_attended, keys_read, layers, text_config
from sglang_gemma4.serving.launch import fields_of


@dataclass
class CategoryWork:
    """Least ``bytes`` moved and ``flops`` computed in one step by the kernels of one ``category`` (``kernel_categories.CATEGORIES``)."""

    category: str
    bytes: float = 0.0
    flops: float = 0.0


class _Sum(dict[str, CategoryWork]):
    """Work summed up by category; activations have ``size`` bytes per element, weights of quantised layers ``weights`` bytes."""

    def __init__(self, size: float, weights: float) -> None:
        self.size, self.weights = size, weights

    def add(self, category: str, elements: float, flops: float = 0.0, size: float | None = None) -> None:
        work = self.setdefault(category, CategoryWork(category))
        work.bytes += elements * (self.size if size is None else size)
        work.flops += flops

    def gemm(self, m: float, k: int, n: float, category: str = "dense gemm", quantised: bool = True) -> None:
        """Add the GEMM of [m, k] and weights [k, n], which have the activations' type if not ``quantised``."""
        self.add(category, k * n, 2 * m * k * n, size=self.weights if quantised else self.size)
        self.add(category, m * (k + n))


def step_work(
    config: ConfigJson,
    *,
    batch: int,
    query_tokens: int,
    context: int,
    prefill: bool = False,
    dtype_bytes: float = 2,
    kv_bytes: float = 2,
    scale_bytes: float = 0,
    weight_bytes: float | None = None,
    draft: ConfigJson | None = None,
    draft_steps: int = 0,
) -> list[CategoryWork]:
    """Least work of one decode, verify or prefill step on one GPU.

    Args:
        config: the target's config.json.
        batch: number of requests.
        query_tokens: tokens of each request in the step: 1 in decode, the draft tokens in a verify step, the prompt
            in prefill.
        context: tokens of a request once the step's own are written; the query tokens are its last.
        prefill: only the last token needs logits, and therefore the layers behind the last one that owns KV.
        dtype_bytes: of weights and activations. kv_bytes: of a KV cache element. scale_bytes: of each token's head
            besides its elements, for K and for V, in a cache with scales per token and head.
        weight_bytes: of a quantised weight with its share of the scales; None: ``dtype_bytes``. The head, routers,
            embeddings, norms and the assistant are not quantised.
        draft: the assistant's config.json; ``draft_steps`` of its passes belong to the step, one token per request
            over the committed context.

    Raises:
        ValueError: a count is below one, or the context is shorter than the step.
    """
    if min(batch, query_tokens) < 1 or context < query_tokens:
        raise ValueError(
            f"batch {batch} and {query_tokens} query tokens must be at least 1, and a context of {context} must hold the query tokens"
        )
    text, total = text_config(config), _Sum(dtype_bytes, dtype_bytes if weight_bytes is None else weight_bytes)
    tokens, hidden = batch * query_tokens, text.hidden_size
    total.add("copy", 2 * tokens * hidden)  # embedding rows
    if text.hidden_size_per_layer_input:
        width = text.num_hidden_layers * text.hidden_size_per_layer_input
        total.add("copy", 2 * tokens * width)
        total.gemm(tokens, hidden, width)
        total.add("norm", 3 * tokens * width, 6 * tokens * width)  # norm of the projection, fused with the embedding
    every = list(layers(text))
    owners = 1 + max((number for number, layer in enumerate(every) if layer.owns_kv), default=-1)
    for number, layer in enumerate(every):
        queries = 1 if prefill and number >= owners else query_tokens  # nothing later reads the other tokens
        _attention_block(total, layer, hidden, batch, queries, context, kv_bytes, scale_bytes)
        _feed_forward_block(total, layer, text, batch * queries)
    rows = batch if prefill else tokens
    total.add("norm", 2 * tokens * hidden + hidden, 4 * tokens * hidden)
    total.gemm(rows, hidden, text.vocab_size, quantised=False)
    total.add("logits", rows * text.vocab_size, 4 * rows * text.vocab_size)  # soft-cap and argmax in one read
    if draft is not None:
        total.weights = dtype_bytes
        for _ in range(draft_steps):
            _draft_pass(total, draft, batch, max(1, context - query_tokens), kv_bytes, scale_bytes)
    return list(total.values())


def _attention_block(
    total: _Sum, layer: Layer, hidden: int, batch: int, queries: int, context: int, kv_bytes: float, scale_bytes: float
) -> None:
    """Add projections, q/k/v norms, RoPE, KV write and attention of one layer. Shared layers read their owner's KV again."""
    tokens, q, kv = batch * queries, layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    for inputs, outputs in layer.projections(hidden):
        total.gemm(tokens, inputs, outputs)
    heads = q + (2 * kv if layer.owns_kv else 0)
    total.add("norm", 2 * tokens * heads, 4 * tokens * heads)
    turned = (layer.heads + (layer.kv_heads if layer.owns_kv else 0)) * layer.rotated
    total.add("rope", tokens * (2 * turned + layer.rotated), 3 * tokens * turned)  # in place; cosines and sines read
    if layer.owns_kv:
        total.add("kv write", 2 * tokens * kv)
        total.add("kv write", 2 * tokens * kv, size=kv_bytes)
        total.add("kv write", 2 * tokens * layer.kv_heads, size=scale_bytes)
    total.add("attention", 2 * tokens * q, 4 * batch * keys_attended(context, queries, layer.window) * q)
    keys = batch * keys_read(context, queries, layer.window)
    total.add("attention", 2 * keys * kv, size=kv_bytes)
    total.add("attention", 2 * keys * layer.kv_heads, size=scale_bytes)


def _feed_forward_block(total: _Sum, layer: Layer, text: Any, tokens: int) -> None:
    """Add the hidden-width norms with their residual additions, the dense MLP, the experts and per-layer embeddings of one layer."""
    hidden, wide, moe = text.hidden_size, tokens * text.hidden_size, text.enable_moe_block
    # Input norm 2; attention output + residual in, residual + MLP input out 4; MLP output + residual in, stream out
    # 3. Experts add the router's input, their own input and their output.
    passes = 2 + 4 + 3 + (3 if moe else 0)
    total.add("norm", passes * wide + (9 if moe else 4) * hidden, 4 * passes * wide)
    total.gemm(tokens, hidden, 2 * layer.ffn)
    total.gemm(tokens, layer.ffn, hidden)
    total.add("activation", 3 * tokens * layer.ffn, 10 * tokens * layer.ffn)
    if moe:
        experts, picks, inner = text.num_experts, text.top_k_experts, text.moe_intermediate_size
        hit, rows = distinct(experts, picks, tokens), tokens * picks
        total.gemm(tokens, hidden, experts, quantised=False)
        total.add("moe experts", hit * 3 * hidden * inner, 6 * rows * hidden * inner, size=total.weights)
        total.add("moe experts", wide + rows * (2 * inner + inner + hidden))
        total.add("activation", 3 * rows * inner, 10 * rows * inner)
        total.add("moe routing", tokens * experts + rows * hidden + wide, 2 * rows * hidden)  # top-k in; sum over the picks
        total.add("moe routing", rows, size=8)  # weight (float32) and expert (int32) of each pick
    if text.hidden_size_per_layer_input:
        ple = text.hidden_size_per_layer_input
        total.gemm(tokens, hidden, ple)
        total.gemm(tokens, ple, hidden)
        total.add("activation", 3 * tokens * ple, 11 * tokens * ple)
        total.add("norm", 3 * wide + hidden, 6 * wide)


def _draft_pass(total: _Sum, config: ConfigJson, batch: int, context: int, kv_bytes: float, scale_bytes: float) -> None:
    """Add one pass of the assistant, one token per request; it reads the target's KV and writes none."""
    text, backbone = text_config(config), config["backbone_hidden_size"]
    hidden, vocabulary = text.hidden_size, text.vocab_size
    total.add("copy", 2 * batch * backbone)
    total.gemm(batch, 2 * backbone, hidden)
    total.gemm(batch, hidden, backbone)
    for layer in layers(text, all_shared=True):
        _attention_block(total, layer, hidden, batch, 1, context, kv_bytes, scale_bytes)
        _feed_forward_block(total, layer, text, batch)
    total.add("norm", 2 * batch * hidden, 4 * batch * hidden)
    if config.get("use_ordered_embeddings"):  # centroids first, then the vocabulary rows of the active ones
        centroids, active = config["num_centroids"], config["centroid_intermediate_top_k"]
        rows, per_request = vocabulary // centroids, active * vocabulary // centroids
        total.gemm(batch, hidden, centroids)
        total.add("dense gemm", distinct(centroids, active, batch) * rows * hidden + batch * per_request, 2 * batch * per_request * hidden)
        total.add("logits", batch * (centroids + per_request), batch * (centroids + per_request))
    else:
        total.gemm(batch, hidden, vocabulary)
        total.add("logits", batch * vocabulary, batch * vocabulary)


def floor_microseconds(work: CategoryWork, card: Mapping[str, Any]) -> float:
    """The longer of two times: moving ``work.bytes`` at ``card["bandwidth_gbs"]`` and computing ``work.flops`` at ``card["teraflops"]``."""
    moving, computing = work.bytes / (card["bandwidth_gbs"] * 1e3), work.flops / (card["teraflops"] * 1e6)
    return float(max(moving, computing))


def beside(row: Mapping[str, Any], model: str, arguments: Sequence[str], card: Mapping[str, Any]) -> dict[str, Any]:
    """The ``roofline`` of a ``profile`` record (``records.py``), for the engine that made it.

    Args:
        row: the record, or the result of ``profile.profile_stage``.
        model: checkpoint whose config.json describes the target. arguments: flags of ``launch_server`` that the
            engine was started with. Under tensor parallelism each GPU is taken to do an equal part of the whole.
        card: the result of ``card.measure()``.

    Raises:
        ValueError: a config.json is missing or not Gemma 4's, or weights are in a format that is not counted here.
    """
    fields = fields_of(list(arguments))
    config = _config(model, "model")
    prefill = row["stage"] == "prefill"
    draft_path = fields.get("speculative_draft_model_path") or fields.get("speculative_draft_model")
    drafts = bool(draft_path and fields.get("speculative_algorithm")) and not prefill
    dtype = fields.get("dtype", "auto")
    size = 4 if dtype in ("float32", "float") or (dtype == "auto" and config.get("dtype") == "float32") else 2
    kv_dtype = str(fields.get("kv_cache_dtype", "auto"))
    work = step_work(
        config,
        batch=row["batch"],
        query_tokens=row["tokens_per_request"],
        context=row["context_tokens"],
        prefill=prefill,
        dtype_bytes=size,
        weight_bytes=weight_bytes(config, fields.get("quantization")),
        kv_bytes=1 if kv_dtype.startswith(("fp8", "int8")) else 2 if kv_dtype.startswith("bf") else size,
        scale_bytes=SCALE_BYTES if named(kv_dtype) else 0,
        draft=_config(str(draft_path), "draft model") if drafts else None,
        draft_steps=int(fields.get("speculative_num_steps", 0)) if drafts else 0,
    )
    ranks = int(next((fields[name] for name in ("tp_size", "tp", "tensor_parallel_size") if name in fields), 1))
    share = [CategoryWork(one.category, one.bytes / ranks, one.flops / ranks) for one in work]
    figures = {name: card[name] for name in ("bandwidth_gbs", "teraflops", "source")}
    return {**figures, "categories": [{**asdict(one), "microseconds": floor_microseconds(one, card)} for one in share]}


def weight_bytes(config: ConfigJson, asked: Any = None) -> float | None:
    """Bytes per weight of the layers that a ``quantization_config``, or ``--quantization`` as ``asked``, quantises; None if none.

    For compressed-tensors the quantised values and scales of its first group are counted: scales in bfloat16 by
    group, with zero points of 4 bits, or in float32 by block.

    Raises:
        ValueError: another format.
    """
    given = config.get("quantization_config")
    if given is not None and gptq_config.layout_of(given) and gptq_config.reason_against(given) is None:
        given = gptq_config.as_compressed(given, ())  # as it is served
    if given is None and asked in (None, "fp8"):
        return 1.0 if asked else None
    groups = (given or {}).get("config_groups") or {}
    weights = next((group["weights"] for group in groups.values() if group.get("weights")), None)
    if weights is None:
        raise ValueError(
            f"the roofline counts bfloat16, --quantization fp8 and compressed-tensors, not {asked or (given or {}).get('quant_method')}; "
            "leave out --roofline or the quantisation"
        )
    scale = 0.0
    if weights.get("strategy") == "group":
        scale = (2 if weights.get("symmetric", True) else 2.5) / weights["group_size"]
    elif weights.get("strategy") == "block":
        outputs, inputs = weights["block_structure"]
        scale = 4 / (outputs * inputs)
    return float(weights["num_bits"]) / 8 + scale


def _config(path: str, role: str) -> dict[str, Any]:
    config = read_config(path, role)
    if config is None:
        raise ValueError(
            f"{role} {path} has no config.json to count from; give a checkpoint as transformers saves it, or leave out --roofline"
        )
    return config
