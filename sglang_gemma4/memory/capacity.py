"""Calculates what fits a card: weights, KV pools and requests at once, for stock SGLang 0.5.23 beside this package."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sglang_gemma4 import switches
from sglang_gemma4.memory import feature_memory, reserve, swa_ratio, swa_sizing
from sglang_gemma4.tiny import quantisation
from sglang_gemma4.tiny.quantisation import Format

GIB, MIB = reserve.GIB, reserve.MIB
EVICTION_INTERVAL = 128  # tokens; SGLANG_SWA_EVICTION_INTERVAL
BUFFERS = 0.08 * GIB
"""What loading takes beside weights, the caches of sines and cosines and what :func:`_beside` counts: 0.07 to 0.1 GiB on E2B, E4B and
26B-A4B (weights_gb of runs)."""
LARGE, ROUNDED_TO = 10 * MIB, 2 * MIB
"""PyTorch's allocator gives each tensor from the first on a block of its own, a multiple of the second."""
IMAGE_CACHE = 100 * MIB  # SGLANG_VLM_CACHE_SIZE_MB, kept out of the pools of every server that takes images
FEATURE_POOL = GIB
"""SGLANG_MM_FEATURE_CACHE_MB, of a server whose images stay on the card (patch ``image_transport``). SGLang keeps it out of the pools, and
the tokenizer's process has taken it already when they are sized (entrypoints/engine.py:1339), so it counts twice where
``feature_memory`` gives nothing back (``fractions.budget``)."""


@dataclass(frozen=True)
class Card:
    """A card: its name in tables and its memory in MiB as nvidia-smi lists it."""

    name: str
    mib: float

    @property
    def free(self) -> float:
        """Bytes free in a process that has initialised CUDA."""
        return self.mib * MIB - reserve.CONTEXT

    @property
    def hopper(self) -> bool:
        """Whether it is taken for one of compute capability 9.0, by its memory."""
        return 78 * 1024 <= self.mib < 160 * 1024

    @property
    def chunk(self) -> int:
        """SGLang's --chunked-prefill-size by default (arg_groups/memory_hook.py:83-170)."""
        return 2048 if self.mib < 20 * 1024 else 4096 if self.mib < 60 * 1024 else 8192 if self.mib < 160 * 1024 else 16_384

    @property
    def most_decode(self) -> int:
        """The largest batch that SGLang captures by default, on one or two cards."""
        return 8 if self.mib < 20 * 1024 else 48 if self.mib < 35 * 1024 else 32 if self.mib < 60 * 1024 else 256


CARDS = {
    name: Card(name, mib) for name, mib in (("24 GB", 24_564), ("32 GB", 32_607), ("48 GB", 46_068), ("80 GB", 81_559), ("141 GB", 143_771))
}
"""An RTX 4090, an RTX 5090, an L40S, an H100 or A100, an H200."""
KNOWN_AS = {"rtx4090": "24 GB", "l4": "24 GB", "rtx5090": "32 GB", "l40s": "48 GB", "a100": "80 GB", "h100": "80 GB", "h200": "141 GB"}


def card(said: str) -> Card:
    """A card by its name (``H100``), its size in tables (``80`` or ``80GB``), or GiB of memory.

    Raises:
        ValueError: it is none of these.
    """
    word = said.lower().replace(" ", "").removesuffix("gb")
    name = KNOWN_AS.get(word, f"{word} GB")
    if name in CARDS:
        return CARDS[name]
    try:
        gib = float(word.removesuffix("gib"))
    except ValueError:
        gib = 0.0
    if not 4 <= gib <= 1024:
        raise ValueError(f"--card {said}: neither a card ({', '.join([*KNOWN_AS, *CARDS])}) nor from 4 to 1024 GiB of memory")
    return Card(f"{gib:g} GiB", gib * 1024)


@dataclass(frozen=True)
class Server:
    """What an operator chooses: --max-running-requests (None: SGLang's), --chunked-prefill-size (None: by the card), --tp-size.

    ``on_card``: under the package images stay on cards not too small (patch ``image_transport``), unless --mm-feature-transport cpu.
    """

    mtp: bool
    running: int | None = None
    chunk: int | None = None
    draft_tokens: int = 4
    images: bool = True
    on_card: bool = True
    tp: int = 1

    @property
    def limit(self) -> int | None:
        """The most requests that run; None: as many as the pools hold."""
        return self.running or (swa_ratio.CONCURRENT if self.mtp else None)

    def chunk_on(self, where: Card) -> int:
        """Tokens of a prefill chunk."""
        return self.chunk or where.chunk


@dataclass(frozen=True)
class Need:
    """Bytes that a model takes: ``weights`` with buffers, ``towers``, ``draft``, and KV of one token in its full and sliding layers.

    ``all_*`` counts every decoder layer, as stock does; ``own_*`` those that own their KV. ``full_layer`` is one full layer's.
    ``text`` and ``vision`` are transformers' configs. ``written_out``: where a layer's 4-bit weights are written out on Hopper.
    ``dense_copies``: all 4-bit dense weights in bfloat16, where ``dense_copies`` has room for them.
    ``narrow_head``, ``narrow_target``: int8 copies of the draft's and the target's head (``narrow_draft_head``, ``narrow_verify_head``).
    """

    weights: float
    towers: float
    draft: float
    all_full: float
    all_sliding: float
    own_full: float
    own_sliding: float
    full_layer: float
    window: int
    experts: int
    draft_layers: int
    text: Any = field(repr=False, compare=False)
    vision: Any = field(repr=False, compare=False)
    written_out: float = 0.0
    dense_copies: float = 0.0
    narrow_head: float = 0.0
    narrow_target: float = 0.0


@dataclass(frozen=True)
class Pools:
    """Tokens of the full and of the sliding pool, and what a running request holds of the latter at most."""

    full: int
    sliding: int
    per_request: int
    limit: int | None = None

    def requests(self, length: int) -> int:
        """How many requests of ``length`` tokens run at once: all their tokens in the full pool, what they hold at most in the other."""
        fit = min(self.full // length, self.sliding // min(length, self.per_request))
        return fit if self.limit is None else min(fit, self.limit)


def need(name: str, kv_bytes: float = 2, tp: int = 1, scale_bytes: float = 0, form: Format | None = None) -> Need:
    """What one of ``tp`` ranks needs for a real size, from its config.

    ``kv_bytes`` of an element of the KV cache, ``scale_bytes`` of each token's head beside its elements. ``form`` of the linear layers of
    the language model; routers, embeddings, norms, towers and the draft stay in bfloat16.

    Raises:
        ValueError: the size is unknown, the format does not divide it, or ``tp`` does not divide its query heads.
    """
    import transformers

    from sglang_gemma4.models import model_shape
    from sglang_gemma4.tiny import real_sizes

    if name not in real_sizes.SIZES:
        raise ValueError(f"unknown size {name!r}; there are {', '.join(real_sizes.SIZES)}")
    config = real_sizes.target(name)
    if form is not None:
        quantisation.check_sizes(name, config["text_config"], form)
    text = model_shape.text_config(config)
    layers = model_shape.layers(text)
    if tp < 1 or layers[0].heads % tp:
        raise ValueError(f"--tp {tp} does not divide the {layers[0].heads} attention heads of {name}; choose a divisor")

    def per_token(full: bool, own: bool) -> float:
        kept = [layer for layer in layers if (layer.window is None) == full and (layer.owns_kv or not own)]
        return sum(2 * max(1, layer.kv_heads // tp) * (layer.head_dim * kv_bytes + scale_bytes) for layer in kept)

    full, sliding = ([layer for layer in layers if (layer.window is None) == wide] for wide in (True, False))
    draft = real_sizes.assistant(name)
    positions = text.max_position_embeddings
    shares = tp if switches.is_on("SGLANG_GEMMA4_SHARDED_HEAD") else 1
    return Need(
        weights=_weights(model_shape.parameters(config), text, form) / tp
        + _beside(layers, text, form, tp)
        + 4 * positions * (full[0].head_dim + sliding[0].head_dim)
        + BUFFERS,
        towers=2 * _towers(config) / tp,
        draft=2 * sum(model_shape.parameters(draft).values()) / tp,
        all_full=per_token(True, False),
        all_sliding=per_token(False, False),
        own_full=per_token(True, True),
        own_sliding=per_token(False, True),
        full_layer=per_token(True, False) / len(full),
        window=int(text.sliding_window),
        experts=int(text.num_experts or 0) if text.enable_moe_block else 0,
        draft_layers=len(draft["text_config"]["layer_types"]),
        text=text,
        vision=transformers.Gemma4Config(vision_config=config["vision_config"]).vision_config,
        written_out=_written_out(text, form) / tp,
        dense_copies=_dense_copies(model_shape.parameters(config), text, form) / tp,
        narrow_head=0.0 if draft["use_ordered_embeddings"] else _narrow_head(draft["text_config"]) / shares,
        narrow_target=_narrow_head(config["text_config"]) / shares,
    )


def _narrow_head(shape: dict[str, Any]) -> float:
    """Bytes of the copy of a head."""
    from sglang_gemma4.kernels.heads import narrow_scan

    return float(narrow_scan.bytes_of(shape["vocab_size"], shape["hidden_size"]))


def _written_out(text: Any, form: Format | None) -> float:
    """Bytes for the largest dense product and the larger one of a layer's experts in bfloat16 (``kernels/written_out.py``)."""
    if form is None or form.weights["num_bits"] != 4:
        return 0.0
    from sglang_gemma4.models import model_shape

    outputs = [(2 * layer.ffn, (layer.heads + 2 * layer.kv_heads) * layer.head_dim) for layer in model_shape.layers(text)]
    dense = max(map(max, outputs))
    experts = 2 * text.num_experts * text.moe_intermediate_size if text.enable_moe_block else 0
    return 2.0 * int(text.hidden_size * (dense + experts))


def _dense_copies(parameters: dict[str, int], text: Any, form: Format | None) -> float:
    """Bytes of the dense products' weights in bfloat16, without the routers."""
    return 0.0 if form is None or form.weights["num_bits"] != 4 else 2.0 * (parameters["dense gemm"] - _routers(text))


def _routers(text: Any) -> int:
    return int(text.hidden_size * text.num_experts * text.num_hidden_layers) if text.enable_moe_block else 0


def _weights(parameters: dict[str, int], text: Any, form: Format | None) -> float:
    """Bytes of the language model's weights and scales; during the load of ``--quantization fp8`` it is the bfloat16 model's."""
    if form is None:
        return 2.0 * sum(parameters.values())
    linear = parameters["dense gemm"] + parameters["moe experts"] - _routers(text)
    return linear * form.bytes_per_weight + 2.0 * (sum(parameters.values()) - linear)


def _beside(layers: list[Any], text: Any, form: Format | None, tp: int) -> float:
    """Bytes that SGLang's linear layers take of a rank beside the checkpoint's weights.

    Where values are the keys ``qkv_proj`` holds these twice, and large tensors are rounded up.
    """
    each, hidden = 2.0 if form is None else form.bytes_per_weight, text.hidden_size
    found = 0.0
    for layer in layers:
        kept = layer.head_dim * max(1, layer.kv_heads // tp)
        found += each * hidden * kept if layer.k_equals_v else 0
        query = layer.heads * layer.head_dim // tp
        outputs = [query + 2 * kept, query, 2 * layer.ffn // tp, layer.ffn // tp]
        if text.enable_moe_block:
            outputs += [share * text.num_experts * text.moe_intermediate_size // tp for share in (2, 1)]
        found += sum(-(each * hidden * size) % ROUNDED_TO for size in outputs if each * hidden * size >= LARGE)
    return found


def _towers(config: dict[str, Any]) -> int:
    """Parameters of the vision and audio towers and their embedders, counted on transformers' model without memory."""
    import torch
    import transformers

    small = {
        **config["text_config"],
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "num_kv_shared_layers": 0,
        "vocab_size": 512,
    }
    small |= {"num_experts": None, "enable_moe_block": False, "per_layer_config": None}
    with torch.device("meta"):
        model = transformers.Gemma4ForConditionalGeneration(
            transformers.Gemma4Config(**{k: v for k, v in config.items() if k not in ("architectures", "text_config")}, text_config=small)
        )
    parts = [part for name, part in model.model.named_children() if name != "language_model"]
    return sum(parameter.numel() for part in parts for parameter in part.parameters())


def at_first(where: Card, server: Server, *, package: bool = True) -> float:
    """Bytes free before the weights are loaded; a tokenizer's process that keeps image features on the card has its own by then."""
    return where.free - (FEATURE_POOL + feature_memory.FRONT_END if package and features_on_card(where, server) else 0.0)


def features_on_card(where: Card, server: Server) -> bool:
    """Whether the package keeps image features on the card."""
    return server.images and server.on_card and server.tp == 1 and where.mib * MIB >= reserve.FEATURES_ON_CARD


def budget(needed: Need, where: Card, server: Server, fraction: float, *, package: bool = True, reserved: bool = False) -> float:
    """Bytes for KV at this --mem-fraction-static; not above 0 where weights leave none. Of a package's server see ``fractions.budget`` too.

    ``reserved``: with the calculated reserve, under which the feature pool counts once.
    """
    left = fraction * at_first(where, server, package=package) - needed.weights - (needed.draft if server.mtp else 0)
    if package and where.hopper:
        left -= needed.written_out
        left -= _copied(needed, where)
    if package and server.mtp and "narrow_draft_head" in switches.names_asked_for():
        left -= needed.narrow_head
    if package and server.mtp and "narrow_verify_head" in switches.names_asked_for() and switches.is_on("SGLANG_GEMMA4_VERIFY_ARGMAX"):
        left -= needed.narrow_target
    if server.images:
        left -= needed.towers + IMAGE_CACHE
    return left - (FEATURE_POOL if package and features_on_card(where, server) and not reserved else 0.0)


def _copied(needed: Need, where: Card) -> float:
    """Bytes of the copies that ``dense_copies`` makes, where it is asked for."""
    if "dense_copies" not in switches.names_asked_for():
        return 0.0
    from sglang_gemma4.kernels.written_out import COPIED_SHARE

    return needed.dense_copies if needed.dense_copies <= COPIED_SHARE * where.mib * MIB else 0.0


def demand(needed: Need, *, mtp: bool, chunk: int = 8192, draft_tokens: int = 4, windows: int = 1) -> swa_sizing.Demand:
    """What requests need on a server with pages of one token, the overlap scheduler, the radix cache, and ``own_window`` active."""
    return swa_sizing.Demand(
        window=needed.window - 1,  # SGLang keeps one key less than the config's sliding_window: a token's own key is the last of it
        page=1,
        eviction_interval=EVICTION_INTERVAL,
        draft_tokens=draft_tokens if mtp else 0,
        allocation=2 * draft_tokens if mtp else 1,
        chunk=chunk,
        chunks_in_flight=2,
        windows=windows,
        radix_cache=True,
    )


def priced_by_stock(needed: Need, mtp: bool) -> swa_sizing.Stock:
    """SGLang's own prices (``pool_configurator.py:733-801``): every layer has buffers, a draft layer is priced as a full one."""
    return swa_sizing.Stock(needed.all_full + (needed.draft_layers * needed.full_layer if mtp else 0), needed.all_sliding)


def stock(needed: Need, left: float, server: Server) -> Pools:
    """SGLang's own pools for ``left`` bytes; a running request holds two windows."""
    full, sliding = priced_by_stock(needed, server.mtp).sizes(max(0, int(left)), 1)
    held = demand(needed, mtp=server.mtp, draft_tokens=server.draft_tokens, windows=2).per_request
    return Pools(full, sliding, held, server.limit)


def by_ratio(needed: Need, left: float, server: Server) -> Pools:
    """With ``swa_ratio``, ``shared_kv`` and ``draft_budget`` but ``SGLANG_GEMMA4_WITHOUT=swa_sizing,own_window``."""
    config = SimpleNamespace(num_experts=needed.experts, sliding_window=needed.window)
    ratio = swa_ratio.choose(config, None, None, None).ratio or swa_sizing.STOCK_RATIO
    full = int(max(0.0, left) // (needed.own_full + ratio * needed.own_sliding))
    held = demand(needed, mtp=server.mtp, draft_tokens=server.draft_tokens, windows=2).per_request
    return Pools(full, int(full * ratio), held, server.limit)


def by_window(needed: Need, left: float, server: Server, where: Card = CARDS["80 GB"], length: int | None = None) -> Pools:
    """The package's default for ``left`` bytes; ``length`` is ``SGLANG_GEMMA4_REQUEST_TOKENS``.

    Raises:
        ValueError: they do not hold one request.
    """
    asks = demand(needed, mtp=server.mtp, chunk=server.chunk_on(where), draft_tokens=server.draft_tokens)
    priced = priced_by_stock(needed, server.mtp)
    sizes = swa_sizing.solve(asks, max(0, int(left)), needed.own_full, needed.own_sliding, server.limit, priced, length)
    return Pools(sizes.full, sizes.sliding, asks.per_request, server.limit)
