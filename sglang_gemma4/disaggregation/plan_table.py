"""``sglang-gemma4 transfer-plan``: which rank sends what where between a prefill and a decode server, and how many bytes."""

import argparse
from collections.abc import Sequence
from typing import Any

from sglang_gemma4.disaggregation import plan
from sglang_gemma4.disaggregation.plan import Group
from sglang_gemma4.tiny import real_sizes

MIB = 2**20
SCALED, SCALE_BYTES = ("int8_per_token_head", "fp8_per_token_head"), 4
"""Those of ``kernels.kv_cache.formats``, which imports torch: a second of every command's start."""
KV_BYTES = {"bfloat16": 2, "float16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, **dict.fromkeys(SCALED, 1)}
SIZES = tuple(real_sizes.SIZES)


def groups(name: str, kv_cache_dtype: str = "bfloat16") -> tuple[Group, Group]:
    """Full and sliding layers of a released size that own their KV.

    Args:
        kv_cache_dtype: one of :data:`KV_BYTES`.

    Raises:
        ValueError: no such size.
    """
    if name not in SIZES:
        raise ValueError(f"{name}: no Gemma 4 size; there are {', '.join(SIZES)}")
    text = real_sizes.target(name)["text_config"]
    own = text["layer_types"][: text["num_hidden_layers"] - text["num_kv_shared_layers"]]
    full = own.count("full_attention")
    heads, size = text["num_key_value_heads"], KV_BYTES[kv_cache_dtype]
    scale = SCALE_BYTES if kv_cache_dtype in SCALED else 0
    return (
        Group("full", full, text["num_global_key_value_heads"] or heads, text["global_head_dim"] * size, None, scale),
        Group("sliding", len(own) - full, heads, text["head_dim"] * size, text["sliding_window"], scale),
    )


def table(kinds: Sequence[Group], prefill: int, decode: int, tokens: int, page_size: int, prefix: int) -> str:
    """The plan for one request as text: for each link what it carries, then the sums.

    Raises:
        PlanError: the sizes do not divide.
    """
    links = plan.link_bytes(kinds, prefill, decode, tokens, page_size, prefix)
    least = plan.least_bytes(kinds, decode, tokens, page_size, prefix)
    avoided = plan.repeated_bytes(kinds, prefill, decode, tokens, page_size, prefix)
    heads = ["prefill", "decode", *(f"{group.name}: heads, buffers" for group in kinds), "MiB"]
    lines = [f"| {' | '.join(heads)} |", "| ---: | ---: " + "| --- " * len(kinds) + "| ---: |"]
    for (source, target), sent in links.items():
        cells = [_cell(group, prefill, decode, source, target) for group in kinds]
        lines.append(f"| {source} | {target} | {' | '.join(cells)} | {sent / MIB:,.2f} |")
    moved, busiest = sum(links.values()), max(_by_source(links))
    mean = moved / len(_by_source(links))
    return "\n".join(
        [
            *lines,
            "",
            f"{moved / MIB:,.2f} MiB for {tokens:,} tokens ({prefix:,} of them on the decode server), {moved / least:.2f} of the least.",
            f"Copies of replicated heads avoided: {avoided / MIB:,.2f} MiB.",
            f"The busiest prefill rank sends {busiest / mean:.2f} of the mean.",
        ]
    )


def _cell(group: Group, prefill: int, decode: int, source: int, target: int) -> str:
    """``4 of 8 from 0 to 0, 10 of 10``: heads of those that the model has, where from and where to, buffers sent."""
    part = plan.share(group.heads, prefill, decode, source, target)
    assert part is not None
    place = f"{part.heads} of {group.heads} from {part.source} to {part.target}"
    return f"{place}, {len(part.entries(group.entries))} of {group.entries}"


def _by_source(links: dict[tuple[int, int], int]) -> list[int]:
    """Bytes that each prefill rank sends."""
    sums: dict[int, int] = {}
    for (source, _target), sent in links.items():
        sums[source] = sums.get(source, 0) + sent
    return list(sums.values())


def add_command(commands: Any) -> None:
    """Add ``transfer-plan`` to the command line."""
    parser = commands.add_parser(
        "transfer-plan",
        help="which rank sends which KV heads where between a prefill and a decode server",
        description="For one request: what each prefill rank sends to each decode rank, copies avoided, and how even the ranks' work is.",
    )
    parser.add_argument("model", metavar="MODEL", help=f"one of {', '.join(SIZES)}")
    parser.add_argument("--prefill-tp", type=int, required=True, metavar="N", help="--tp-size of the prefill server")
    parser.add_argument("--decode-tp", type=int, required=True, metavar="N", help="--tp-size of the decode server")
    parser.add_argument("--tokens", type=int, default=8000, metavar="N", help="tokens of the prompt (default 8000)")
    parser.add_argument("--prefix", type=int, default=0, metavar="N", help="tokens that the decode server has in its cache (default 0)")
    parser.add_argument("--page-size", type=int, default=1, metavar="N", help="--page-size of both servers (default 1)")
    parser.add_argument("--kv-cache-dtype", choices=KV_BYTES, default="bfloat16", help="of both servers (default bfloat16)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.page_size < 1 or arguments.tokens < 1:
        raise ValueError(f"--page-size {arguments.page_size}, --tokens {arguments.tokens}: both must be at least 1")
    if not 0 <= arguments.prefix < arguments.tokens:
        raise ValueError(f"--prefix {arguments.prefix}: must be from 0 to {arguments.tokens - 1}, less than --tokens")
    kinds = groups(arguments.model, arguments.kv_cache_dtype)
    print(table(kinds, arguments.prefill_tp, arguments.decode_tp, arguments.tokens, arguments.page_size, arguments.prefix))
    return 0
