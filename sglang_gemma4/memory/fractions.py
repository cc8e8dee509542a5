"""What ``capacity``'s servers run, and their --mem-fraction-static.

SGLang, the calculated reserve and this package each choose one.
"""

from types import SimpleNamespace

from sglang_gemma4.memory import capacity, feature_memory, reserve, swa_sizing
from sglang_gemma4.memory.capacity import Card, Server
from sglang_gemma4.memory.model_bytes import Need
from sglang_gemma4.memory.reserve import MIB
from sglang_gemma4.models.schedule import prefill_sizes


def decode_sizes(mtp: bool, most: int) -> list[int]:
    """Batch sizes up to ``most`` that SGLang captures for decoding or verifying (arg_groups/cuda_graph_hook.py:500)."""
    verify = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
    sizes = verify if mtp else [1, 2, 4, 8, 12, *range(16, 257, 8)]
    return sorted({most, *(size for size in sizes if size <= most)})


def steps(needed: Need, where: Card, server: Server) -> reserve.Steps:
    """What such a server runs, with SGLang's sizes of decode graphs and this package's of prefill graphs."""
    chunk = server.chunk_on(where)
    text, layer = needed.text, needed.text.per_layer_config[0]
    names = "num_hidden_layers num_kv_shared_layers intermediate_size enable_moe_block top_k_experts moe_intermediate_size hidden_size"
    shape = {name: getattr(text, name) for name in names.split()}
    like = SimpleNamespace(**shape, num_attention_heads=text.num_attention_heads, head_dim=layer.head_dim)
    graphs = prefill_sizes.capture_sizes(min(chunk, prefill_sizes.worth_up_to(like, fast_prefill=True, ranks=server.tp)))
    most = min(size for size in (server.limit, where.most_decode) if size)
    joined, ordered = reserve.joined_graphs(graphs, bool(needed.experts), server.tp)
    rows, decode = most * (server.draft_tokens if server.mtp else 1), len(decode_sizes(server.mtp, most))
    return reserve.Steps(chunk, rows, decode, graphs, server.mtp, server.images, joined=joined, ordered_keys=ordered)


def budget(needed: Need, where: Card, server: Server, fraction: float, *, reserved: bool = False) -> float:
    """Bytes for KV of this package's server at this --mem-fraction-static.

    The sum of ``capacity.budget`` and what ``feature_memory`` gives back.
    """
    left = capacity.budget(needed, where, server, fraction, reserved=reserved)
    if reserved or not (capacity.features_on_card(where, server) and feature_memory.is_on()):
        return left
    kept = reserve.of(needed.text, needed.vision, steps(needed, where, server), server.tp).total
    return left + feature_memory.given_back(capacity.FEATURE_POOL, fraction, capacity.at_first(where, server), kept)


def both(needed: Need, where: Card, server: Server) -> tuple[float, float]:
    """--mem-fraction-static: SGLang's choice, and what the calculated reserve leaves (0.0 if the GPU is too small)."""
    ran = steps(needed, where, server)
    vision = needed.vision if server.images else None
    most = min(size for size in (server.running, where.most_decode) if size)
    by_rule = reserve.sglang_fraction(where.mib * MIB, ran.chunk, most, len(ran.prefill_graphs), vision, server.tp)
    kept = reserve.of(needed.text, needed.vision, ran, server.tp).total + reserve.MARGIN
    return by_rule, reserve.fraction(kept, where.mib * MIB) if kept < where.free else 0.0


def default(needed: Need, where: Card, server: Server, length: int | None = None) -> tuple[float, bool]:
    """This package's --mem-fraction-static if the operator gives none, and whether the calculated reserve chose it.

    The reserve does where SGLang's own fraction leaves less than one request (``reserve_fallback``). ``length`` is
    ``SGLANG_GEMMA4_REQUEST_TOKENS``.
    """
    by_rule, _ = both(needed, where, server)
    kept = reserve.of(needed.text, needed.vision, steps(needed, where, server), server.tp).total
    calculated = max(0.0, int(1000 * (1 - kept / capacity.at_first(where, server))) / 1000)

    def tokens(fraction: float, reserved: bool) -> int:
        left = budget(needed, where, server, fraction, reserved=reserved)
        try:
            return capacity.by_window(needed, left, server, where, length).full
        except ValueError:
            return 0

    found = tokens(by_rule, False)
    stays = found >= (length or swa_sizing.REFERENCE) or tokens(calculated, True) <= found
    return (by_rule, False) if stays else (calculated, True)
