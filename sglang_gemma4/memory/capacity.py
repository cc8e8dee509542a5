"""Calculates what fits a GPU: weights, KV pools and concurrent requests, for stock SGLang 0.5.23 and this package."""

from dataclasses import dataclass

from sglang_gemma4.kernels.kept_bytes import COPIED_SHARE
from sglang_gemma4.memory import feature_memory, reserve, swa_ratio, swa_sizing
from sglang_gemma4.memory.model_bytes import Need
from sglang_gemma4.patching import switches

GIB, MIB = reserve.GIB, reserve.MIB
EVICTION_INTERVAL = 128  # tokens; SGLANG_SWA_EVICTION_INTERVAL
IMAGE_CACHE = 100 * MIB  # SGLANG_VLM_CACHE_SIZE_MB, kept out of the pools of every server that takes images
FEATURE_POOL = GIB
"""Bytes of SGLANG_MM_FEATURE_CACHE_MB, on a server whose images stay on the GPU (patch ``image_transport``).

SGLang subtracts them from the pools, although the tokenizer process has already allocated them when the pools are
sized (entrypoints/engine.py:1339). They count twice unless ``feature_memory`` gives them back (``fractions.budget``).
"""


@dataclass(frozen=True)
class Card:
    """A GPU: its name in tables and its memory in MiB as nvidia-smi lists it."""

    name: str
    mib: float

    @property
    def free(self) -> float:
        """Bytes free in a process that has initialised CUDA."""
        return self.mib * MIB - reserve.CONTEXT

    @property
    def hopper(self) -> bool:
        """Whether the GPU is assumed to have compute capability 9.0, judged by its memory."""
        return 78 * 1024 <= self.mib < 160 * 1024

    @property
    def chunk(self) -> int:
        """SGLang's --chunked-prefill-size by default (arg_groups/memory_hook.py:83-170)."""
        return 2048 if self.mib < 20 * 1024 else 4096 if self.mib < 60 * 1024 else 8192 if self.mib < 160 * 1024 else 16_384

    @property
    def most_decode(self) -> int:
        """The largest decode batch that SGLang captures by default, on one or two GPUs."""
        return 8 if self.mib < 20 * 1024 else 48 if self.mib < 35 * 1024 else 32 if self.mib < 60 * 1024 else 256


CARDS = {
    name: Card(name, mib) for name, mib in (("24 GB", 24_564), ("32 GB", 32_607), ("48 GB", 46_068), ("80 GB", 81_559), ("141 GB", 143_771))
}
"""An RTX 4090, an RTX 5090, an L40S, an H100 or A100, an H200."""
KNOWN_AS = {"rtx4090": "24 GB", "l4": "24 GB", "rtx5090": "32 GB", "l40s": "48 GB", "a100": "80 GB", "h100": "80 GB", "h200": "141 GB"}


def card(said: str) -> Card:
    """A GPU by its name (``H100``), its size in tables (``80`` or ``80GB``), or GiB of memory.

    Raises:
        ValueError: ``said`` is none of these.
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
        raise ValueError(f"--gpu {said}: neither a GPU ({', '.join([*KNOWN_AS, *CARDS])}) nor from 4 to 1024 GiB of memory")
    return Card(f"{gib:g} GiB", gib * 1024)


@dataclass(frozen=True)
class Server:
    """What an operator chooses: --max-running-requests, --chunked-prefill-size, --tp-size and others.

    None stands for SGLang's default, which for --chunked-prefill-size depends on the GPU.
    ``on_card``: False for --mm-feature-transport cpu. Otherwise the package keeps images on a GPU that is large enough
    (patch ``image_transport``).
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
        """The most requests that may run; None: as many as the pools hold."""
        return self.running or (swa_ratio.CONCURRENT if self.mtp else None)

    def chunk_on(self, where: Card) -> int:
        """Tokens of a prefill chunk."""
        return self.chunk or where.chunk


@dataclass(frozen=True)
class Pools:
    """Tokens of the full and of the sliding pool, and the most sliding tokens that a running request holds."""

    full: int
    sliding: int
    per_request: int
    limit: int | None = None

    def requests(self, length: int) -> int:
        """How many requests of ``length`` tokens run at once.

        Each holds all its tokens in the full pool, and at most ``per_request`` in the sliding pool.
        """
        fit = min(self.full // length, self.sliding // min(length, self.per_request))
        return fit if self.limit is None else min(fit, self.limit)


def at_first(where: Card, server: Server, *, package: bool = True) -> float:
    """Bytes free before the weights are loaded.

    A tokenizer process that keeps image features on the GPU has allocated its memory by then.
    """
    return where.free - (FEATURE_POOL + feature_memory.FRONT_END if package and features_on_card(where, server) else 0.0)


def features_on_card(where: Card, server: Server) -> bool:
    """Whether the package keeps image features on the GPU."""
    return server.images and server.on_card and server.tp == 1 and where.mib * MIB >= reserve.FEATURES_ON_CARD


def budget(needed: Need, where: Card, server: Server, fraction: float, *, package: bool = True, reserved: bool = False) -> float:
    """Bytes for KV at this --mem-fraction-static; 0 or negative if the weights leave none.

    ``fractions.budget`` adds what this package gives back. ``reserved``: the calculated reserve is in force, under
    which the feature pool counts once.
    """
    left = fraction * at_first(where, server, package=package) - needed.weights - (needed.draft if server.mtp else 0)
    if package and where.hopper:
        left -= needed.written_out
        left -= _copied(needed, fraction * where.mib * MIB)
    if server.images:
        left -= needed.towers + IMAGE_CACHE
    return left - (FEATURE_POOL if package and features_on_card(where, server) and not reserved else 0.0)


def _copied(needed: Need, part: float) -> float:
    """Bytes of the bfloat16 copies that ``dense_copies`` makes on a server with ``part`` bytes of a GPU.

    0 where the 4-bit values are repacked for Marlin instead of staying as loaded, or the copies do not fit.
    """
    on = all(switches.part_is_on(name, "SGLANG_GEMMA4_FEW_ROW_LINEAR") for name in ("four_bit_linear", "dense_copies"))
    if switches.four_bit_rows((9, 0)) == 0 or not on:
        return 0.0
    return needed.dense_copies if needed.dense_copies <= COPIED_SHARE * part else 0.0


def demand(needed: Need, *, mtp: bool, chunk: int = 8192, draft_tokens: int = 4, windows: int = 1) -> swa_sizing.Demand:
    """What requests need on a server with pages of one token, overlap scheduler, radix cache and ``own_window``."""
    return swa_sizing.Demand(
        window=needed.window - 1,  # SGLang keeps one key fewer than sliding_window, which includes the token's own
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
    """Bytes per token as SGLang counts them (``pool_configurator.py:733-801``).

    Every layer has buffers, and a draft layer counts as a full one.
    """
    return swa_sizing.Stock(needed.all_full + (needed.draft_layers * needed.full_layer if mtp else 0), needed.all_sliding)


def stock(needed: Need, left: float, server: Server) -> Pools:
    """SGLang's own pools for ``left`` bytes; a running request holds two windows."""
    full, sliding = priced_by_stock(needed, server.mtp).sizes(max(0, int(left)), 1)
    held = demand(needed, mtp=server.mtp, draft_tokens=server.draft_tokens, windows=2).per_request
    return Pools(full, sliding, held, server.limit)


def by_window(needed: Need, left: float, server: Server, where: Card = CARDS["80 GB"], length: int | None = None) -> Pools:
    """The package's default pools for ``left`` bytes; ``length`` is ``SGLANG_GEMMA4_REQUEST_TOKENS``.

    Raises:
        ValueError: ``left`` bytes do not hold one request.
    """
    asks = demand(needed, mtp=server.mtp, chunk=server.chunk_on(where), draft_tokens=server.draft_tokens)
    priced = priced_by_stock(needed, server.mtp)
    sizes = swa_sizing.solve(asks, max(0, int(left)), needed.own_full, needed.own_sliding, server.limit, priced, length)
    return Pools(sizes.full, sizes.sliding, asks.per_request, server.limit)
