"""Calculates how many tokens the KV pools hold on a card: stock SGLang 0.5.23 beside this package."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sglang_gemma4.memory import swa_ratio, swa_sizing

GIB = 2**30
STOCK_RATIO = 0.8  # arg_groups/fields/schedule.py:150
EVICTION_INTERVAL = 128  # tokens; SGLANG_SWA_EVICTION_INTERVAL
FREE_GIB = {"80 GB": 78.2, "141 GB": 139.0}
"""Free memory of an empty card in a process that has initialised CUDA: measured on an H200 (139.0), taken from its listing for an H100."""


@dataclass(frozen=True)
class Need:
    """Bytes that a model takes: its ``weights``, its ``draft``'s weights, and KV of one token in its full and sliding layers.

    ``all_*`` counts every decoder layer, as stock does; ``own_*`` those that own their KV. ``full_layer`` is one full layer's.
    """

    weights: float
    draft: float
    all_full: float
    all_sliding: float
    own_full: float
    own_sliding: float
    full_layer: float
    window: int
    experts: int
    draft_layers: int


@dataclass(frozen=True)
class Pools:
    """Tokens of the full and of the sliding pool."""

    full: int
    sliding: int
    window: int

    def requests(self, length: int) -> int:
        """How many requests of ``length`` tokens fit at once: all their tokens in the full pool, two windows of each in the sliding pool
        (the one that decoding reads and the prompt's, which stays locked, see ``swa_sizing``) and what is not evicted yet."""
        return min(self.full // length, self.sliding // min(length, 2 * self.window + EVICTION_INTERVAL))


def need(name: str, kv_bytes: float = 2, tp: int = 1) -> Need:
    """What one of ``tp`` ranks needs for a real size with bfloat16 weights, from its config.

    Raises:
        ValueError: the size is unknown, or ``tp`` does not divide its query heads.
    """
    from sglang_gemma4.models import model_shape
    from sglang_gemma4.tiny import real_sizes

    if name not in real_sizes.SIZES:
        raise ValueError(f"unknown size {name!r}; there are {', '.join(real_sizes.SIZES)}")
    config = real_sizes.target(name)
    text = model_shape.text_config(config)
    layers = model_shape.layers(text)
    if tp < 1 or layers[0].heads % tp:
        raise ValueError(f"--tp {tp} does not divide the {layers[0].heads} attention heads of {name}; choose a divisor")

    def per_token(full: bool, own: bool) -> float:
        kept = [layer for layer in layers if (layer.window is None) == full and (layer.owns_kv or not own)]
        return sum(2 * max(1, layer.kv_heads // tp) * layer.head_dim * kv_bytes for layer in kept)

    full = [layer for layer in layers if layer.window is None]
    draft = real_sizes.assistant(name)
    return Need(
        weights=2 * (sum(model_shape.parameters(config).values()) + _towers(config)) / tp,
        draft=2 * sum(model_shape.parameters(draft).values()) / tp,
        all_full=per_token(True, False),
        all_sliding=per_token(False, False),
        own_full=per_token(True, True),
        own_sliding=per_token(False, True),
        full_layer=per_token(True, False) / len(full),
        window=int(text.sliding_window),
        experts=int(text.num_experts or 0) if text.enable_moe_block else 0,
        draft_layers=len(draft["text_config"]["layer_types"]),
    )


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


def stock(needed: Need, budget: float, *, mtp: bool, ratio: float = STOCK_RATIO) -> Pools:
    """SGLang's own sizing (``pool_configurator.py:733-801``): every layer has buffers, a draft layer is priced as a full one."""
    cell = needed.all_full + ratio * needed.all_sliding + (needed.draft_layers * needed.full_layer if mtp else 0)
    return _pools(needed, budget - (needed.draft if mtp else 0), cell, ratio)


def by_ratio(needed: Need, budget: float, *, mtp: bool) -> Pools:
    """With ``swa_ratio``, ``shared_kv`` and ``draft_budget`` but ``SGLANG_GEMMA4_WITHOUT=swa_sizing``."""
    config = SimpleNamespace(num_experts=needed.experts, sliding_window=needed.window)
    chosen = swa_ratio.choose(config, None, None, None).ratio or STOCK_RATIO
    cell = needed.own_full + chosen * needed.own_sliding
    return _pools(needed, budget - (needed.draft if mtp else 0), cell, chosen)


def demand(needed: Need, *, mtp: bool, chunk: int = 8192, draft_tokens: int = 4) -> swa_sizing.Demand:
    """What requests need on a server with pages of one token, the overlap scheduler, the radix cache, and ``own_window`` active."""
    return swa_sizing.Demand(
        window=needed.window - 1,  # SGLang keeps one key less than the config's sliding_window: a token's own key is the last of it
        page=1,
        eviction_interval=EVICTION_INTERVAL,
        draft_tokens=draft_tokens if mtp else 0,
        allocation=2 * draft_tokens if mtp else 1,
        chunk=chunk,
        chunks_in_flight=2,
        windows=1,
        radix_cache=True,
    )


def by_window(needed: Need, budget: float, *, mtp: bool, running: int | None = None) -> Pools:
    """The package's default, with chunks of 8192; ``running`` None is SGLang's default: 48 requests with MTP, no limit without."""
    limit = running or (swa_ratio.CONCURRENT if mtp else None)
    priced = swa_sizing.Stock(needed.all_full + (needed.draft_layers * needed.full_layer if mtp else 0), needed.all_sliding)
    left = int(budget - (needed.draft if mtp else 0))
    sizes = swa_sizing.solve(demand(needed, mtp=mtp), left, needed.own_full, needed.own_sliding, limit, priced)
    return Pools(sizes.full, sizes.sliding, needed.window)


def _pools(needed: Need, budget: float, cell: float, ratio: float) -> Pools:
    full = int(max(0.0, budget) // cell)
    return Pools(full, int(full * ratio), needed.window)


def table(names: Sequence[str], fraction: float, kv_bytes: float, tp: int) -> str:
    """Markdown table of tokens and concurrent requests for each size, card and mode, or that the model does not fit."""
    arms = ("stock", "by ratio", "package")
    heads = ["model", "card", "MTP", *(f"{arm}: full / sliding" for arm in arms), *(f"{arm}: 2k, 9k, 65k" for arm in arms)]
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for name in names:
        needed = need(name, kv_bytes, tp)
        for card, free in FREE_GIB.items():
            for mtp in (False, True):
                budget = fraction * free * GIB - needed.weights
                row = [name, card, "yes" if mtp else "no"]
                if budget <= needed.draft:
                    lines.append(f"| {' | '.join(row)} | weights do not fit | | | | | |")
                    continue
                pools = [stock(needed, budget, mtp=mtp), by_ratio(needed, budget, mtp=mtp), by_window(needed, budget, mtp=mtp)]
                row += [f"{each.full:,} / {each.sliding:,} ({each.full / pools[0].full:.2f}x)" for each in pools]
                row += [", ".join(f"{each.requests(length):,}" for length in (2000, 9000, 65_000)) for each in pools]
                lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def add_command(commands: Any) -> None:
    """Add ``capacity`` to the subcommands of the command line."""
    parser = commands.add_parser(
        "capacity",
        help="how many tokens and requests fit a card: stock beside this package, by calculation",
        description="By calculation from the model's config; an engine's own log says it exactly.",
    )
    parser.add_argument("names", nargs="*", metavar="SIZE", help="e2b, e4b, 26b-a4b, 31b (default: all)")
    parser.add_argument("--mem-fraction-static", type=float, default=0.85, metavar="F", help="SGLang's flag of that name (default 0.85)")
    parser.add_argument("--kv-bytes", type=float, default=2, metavar="B", help="bytes of a KV element: 2 for bfloat16, 1 for fp8")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel ranks; tokens are per rank, which is per model")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.tiny import real_sizes

    if not 0 < arguments.mem_fraction_static < 1:
        raise ValueError(f"--mem-fraction-static {arguments.mem_fraction_static} is not between 0 and 1; SGLang's is usually 0.8 to 0.9")
    if arguments.kv_bytes not in (1, 2, 4):
        raise ValueError(f"--kv-bytes {arguments.kv_bytes:g} is not 1, 2 or 4; give 2 for bfloat16")
    print(table(arguments.names or list(real_sizes.SIZES), arguments.mem_fraction_static, arguments.kv_bytes, arguments.tp))
    return 0
