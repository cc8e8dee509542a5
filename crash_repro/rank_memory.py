"""KV pools of ranks of a Gemma 4 in SGLang's own classes, filled and compared byte for byte: no model, no engine."""

import dataclasses
from collections.abc import Sequence
from typing import Any

UNTOUCHED = 0xA5
"""What every byte of a decode rank's pools is before anything arrives."""


@dataclasses.dataclass(frozen=True)
class Layers:
    """Layers of one kind: how many, KV heads of the model, elements of a head."""

    count: int
    heads: int
    head_dim: int


@dataclasses.dataclass(frozen=True)
class Model:
    """The two kinds and the window of the sliding ones; elements are two bytes, or one in a cache with scales."""

    full: Layers
    sliding: Layers
    window: int


# Layers, KV heads and the ratio of head sizes are the released ones'; heads are 16 times smaller, and the window is short.
SMALL = 16
MODELS = {
    "e2b": Model(Layers(3, 1, 512 // SMALL), Layers(12, 1, 256 // SMALL), 48),
    "e4b": Model(Layers(4, 2, 512 // SMALL), Layers(20, 2, 256 // SMALL), 48),
    "26b-a4b": Model(Layers(5, 2, 512 // SMALL), Layers(25, 8, 256 // SMALL), 48),
    "31b": Model(Layers(10, 4, 512 // SMALL), Layers(50, 16, 256 // SMALL), 48),
    # 48 layers, every sixth full: SGLang's test of its configuration (test_gemma4_unified.py) has the released file's numbers.
    "12b": Model(Layers(8, 1, 512 // SMALL), Layers(40, 8, 256 // SMALL), 48),
    "four-heads": Model(Layers(2, 4, 32), Layers(4, 4, 16), 48),
    "26b-a4b-full-heads": Model(Layers(5, 2, 512), Layers(25, 8, 256), 256),
    "26b-a4b-full-size": Model(Layers(5, 2, 512), Layers(25, 8, 256), 1024),
}


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt's tokens, how many of them the decode server has already, tokens of a prefill chunk, and which decode server it goes to.

    ``again``: a former room, whose pages it has on both servers.
    """

    room: int
    tokens: int
    prefix: int = 0
    chunk: int = 1 << 20
    server: int = 0
    again: int = 0


class Pages:
    """Pages of requests on one server: each rank of it has the same, in no order that the other server has."""

    def __init__(
        self, model: Model, page_size: int, requests: Sequence[Request], seed: int, behind_prefix: bool, whole_window: bool = False
    ) -> None:
        import numpy as np

        self.model, self.page_size = model, page_size
        self.count = {
            name: 5 + sum(-(-request.tokens // page_size) for request in requests if not request.again) for name in ("full", "sliding")
        }
        random = np.random.default_rng(seed)
        free = {name: list(1 + random.permutation(count - 1)) for name, count in self.count.items()}  # page 0 is SGLang's padding
        self.of: dict[int, dict[str, tuple[range, Any]]] = {}
        for request in requests:
            if request.again:
                self.of[request.room] = self.of[request.again]
                continue
            wanted = self.wanted(request, request.prefix if behind_prefix else 0, whole_window)
            self.of[request.room] = {
                name: (positions, np.array([free[name].pop() for _ in positions], dtype=np.int32)) for name, positions in wanted.items()
            }

    def wanted(self, request: Request, prefix: int, whole_window: bool) -> dict[str, range]:
        """Positions of the pages of a request behind ``prefix`` tokens; of sliding layers those of the last window, or all in it."""
        last = -(-request.tokens // self.page_size)
        window = max(0 if whole_window else request.prefix, request.tokens - self.model.window)
        return {"full": range(prefix // self.page_size, last), "sliding": range(window // self.page_size, last)}


def pool(model: Model, page_size: int, pages: Pages, ranks: int, kv_format: str = "") -> Any:
    """A rank's ``SWAKVPool`` of a server with ``ranks`` ranks; ``kv_format``: bfloat16, or a cache with scales."""
    import torch
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    full, sliding = model.full, model.sliding
    quantised: dict[str, Any] = {}
    if kv_format:
        from sglang_gemma4.attention.quantised_pool import PerTokenHeadPool
        from sglang_gemma4.kernels.kv_cache.formats import FORMATS

        quantised = {"token_to_kv_pool_class": PerTokenHeadPool, "dtype": FORMATS[kv_format].stored}
    return SWAKVPool(
        size=(pages.count["full"] - 1) * page_size,
        size_swa=(pages.count["sliding"] - 1) * page_size,
        page_size=page_size,
        head_num=max(1, full.heads // ranks),
        head_dim=full.head_dim,
        swa_head_num=max(1, sliding.heads // ranks),
        swa_head_dim=sliding.head_dim,
        swa_v_head_dim=sliding.head_dim,
        v_head_dim=full.head_dim,
        full_attention_layer_ids=list(range(full.count)),
        swa_attention_layer_ids=list(range(full.count, full.count + sliding.count)),
        device="cpu",
        enable_memory_saver=False,
        **{"dtype": torch.bfloat16, **quantised},
    )


def buffers(found: Any, name: str) -> list[Any]:
    """K of each layer, then V, then scales of K and of V if there are any, as bytes ``[slots, heads, bytes of a head]``."""
    import torch

    part = found.full_kv_pool if name == "full" else found.swa_kv_pool
    scales = (*part.k_scale_buffer, *part.v_scale_buffer) if part.k_scale_buffer else ()
    return [
        *(buffer.view(torch.uint8) for buffer in (*part.k_buffer, *part.v_buffer)),
        *(buffer.unsqueeze(-1).view(torch.uint8) for buffer in scales),
    ]


def computed(model: Model, name: str, entry: int, request: Request, page_size: int, width: int) -> Any:
    """What a layer has for a request, padding of the last page included: bytes ``[tokens, heads of the model, width]``."""
    import numpy as np
    import torch

    layers = model.full if name == "full" else model.sliding
    random = np.random.default_rng((request.room, entry, name == "full"))
    tokens = -(-request.tokens // page_size) * page_size
    return torch.from_numpy(random.integers(0, 256, (tokens, layers.heads, width), dtype=np.uint8))


def heads_of(heads: int, ranks: int, rank: int) -> slice:
    """Heads of a rank, as SGLang's loader shards k_proj: a part, or one that neighbours share."""
    each = max(1, heads // ranks)
    first = rank * each if heads >= ranks else rank // (ranks // heads)
    return slice(first, first + each)


def write(found: Any, pages: Pages, requests: Sequence[Request], ranks: int, rank: int) -> None:
    """Put what the model has computed into a prefill rank's pools, and noise everywhere else."""
    import torch

    for name, layers in (("full", pages.model.full), ("sliding", pages.model.sliding)):
        for entry, buffer in enumerate(buffers(found, name)):
            buffer.random_(0, 256, generator=torch.Generator().manual_seed(entry))
            _place(buffer, name, entry, pages, requests, heads_of(layers.heads, ranks, rank))


def difference(found: Any, pages: Pages, requests: Sequence[Request], failed: Sequence[Request], ranks: int, rank: int) -> str | None:
    """The first byte of a decode rank's pools that is not what it should be; None if all are, those that nobody sent to included.

    Pages of requests that ``failed`` may hold anything.
    """
    import torch

    for name, layers in (("full", pages.model.full), ("sliding", pages.model.sliding)):
        for entry, buffer in enumerate(buffers(found, name)):
            expected = torch.full_like(buffer, UNTOUCHED)
            _place(expected, name, entry, pages, requests, heads_of(layers.heads, ranks, rank))
            for request in failed:
                slots = _slots(pages, request, name)
                expected[slots] = buffer[slots]
            if not torch.equal(buffer, expected):
                where = (buffer != expected).nonzero()[0].tolist()
                return f"rank {rank} of {ranks}: buffer {entry} of the {name} layers differs at slot {where[0]}, head {where[1]}"
    return None


def _slots(pages: Pages, request: Request, name: str) -> Any:
    import torch

    numbers = torch.from_numpy(pages.of[request.room][name][1]).long()
    return (numbers[:, None] * pages.page_size + torch.arange(pages.page_size)).ravel()


def _place(buffer: Any, name: str, entry: int, pages: Pages, requests: Sequence[Request], heads: slice) -> None:
    size = pages.page_size
    for request in requests:
        if request.again:
            continue
        positions = pages.of[request.room][name][0]
        values = computed(pages.model, name, entry, request, size, buffer.shape[-1])
        buffer[_slots(pages, request, name)] = values[positions.start * size : positions.stop * size, heads]
