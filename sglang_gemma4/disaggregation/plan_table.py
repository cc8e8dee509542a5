"""``sglang-gemma4 transfer-plan``: which rank sends what where between a prefill and a decode server, and how many bytes."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_gemma4 import terminal
from sglang_gemma4.disaggregation import plan
from sglang_gemma4.disaggregation.plan import Group
from sglang_gemma4.tiny import real_sizes

MIB = 2**20
SCALED, SCALE_BYTES = ("int8_per_token_head", "fp8_per_token_head"), 4
"""Copied from ``kernels.kv_cache.formats``, whose torch import would add a second to the start of every command."""
KV_BYTES = {"bfloat16": 2, "float16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, **dict.fromkeys(SCALED, 1)}
SIZES = tuple(real_sizes.SIZES)


def groups(name: str, kv_cache_dtype: str = "bfloat16") -> tuple[Group, Group]:
    """The full and the sliding layers that own their KV in a released model size.

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


@dataclass(frozen=True)
class Transfer:
    """What one request moves from ``prefill`` to ``decode`` ranks: ``tokens`` of the prompt, ``prefix`` of them on the decode server."""

    kinds: Sequence[Group]
    prefill: int
    decode: int
    tokens: int
    page_size: int = 1
    prefix: int = 0

    def links(self) -> dict[tuple[int, int], int]:
        """Bytes by (prefill rank, decode rank).

        Raises:
            PlanError: the sizes do not divide.
        """
        return plan.link_bytes(self.kinds, self.prefill, self.decode, self.tokens, self.page_size, self.prefix)

    def part(self, group: Group, source: int, target: int) -> plan.Share:
        """What a connected pair of ranks moves of a group of layers."""
        part = plan.share(group.heads, self.prefill, self.decode, source, target)
        assert part is not None
        return part

    def sums(self) -> dict[str, float]:
        """Bytes moved, their ratio to the least possible, replicated bytes avoided, and the busiest prefill rank's bytes over the mean."""
        links = self.links()
        ranks, moved = _by_source(links), sum(links.values())
        least = plan.least_bytes(self.kinds, self.decode, self.tokens, self.page_size, self.prefix)
        avoided = plan.repeated_bytes(self.kinds, self.prefill, self.decode, self.tokens, self.page_size, self.prefix)
        return {"bytes": moved, "of_least": moved / least, "avoided_bytes": avoided, "busiest_of_mean": max(ranks) * len(ranks) / moved}

    def data(self) -> dict[str, Any]:
        """For JSON: each link with its bytes and layers, then the sums."""
        return {"links": [self._link(*ranks, sent) for ranks, sent in self.links().items()], **self.sums()}

    def _link(self, source: int, target: int, sent: int) -> dict[str, Any]:
        layers = {}
        for group in self.kinds:
            part = self.part(group, source, target)
            buffers = len(part.entries(group.entries))
            layers[group.name] = {"heads": part.heads, "of_heads": group.heads, "from_head": part.source, "to_head": part.target}
            layers[group.name] |= {"buffers": buffers, "of_buffers": group.entries}
        return {"prefill_rank": source, "decode_rank": target, "bytes": sent, "layers": layers}


def text(transfer: Transfer, limit: int | None = None) -> str:
    """For a terminal of ``limit`` columns: two rows for each link, one for full and one for sliding layers, then the sums."""
    heads = ("prefill", "decode", "layers", "KV heads", "from", "to", "buffers", "MiB")
    rows = []
    for link in transfer.data()["links"]:
        shown = [str(link["prefill_rank"]), str(link["decode_rank"]), f"{link['bytes'] / MIB:,.2f}"]
        for name, part in link["layers"].items():
            held, sent = f"{part['heads']} of {part['of_heads']}", f"{part['buffers']} of {part['of_buffers']}"
            rows.append([*shown[:2], name, held, str(part["from_head"]), str(part["to_head"]), sent, shown[2]])
            shown = ["", "", ""]
    sums = [line for said in _sums(transfer) for line in terminal.wrapped(said, limit)]
    return "\n".join([*terminal.table(heads, rows, right=(0, 1, 3, 4, 5, 6, 7)), "", *sums])


def markdown(transfer: Transfer) -> str:
    """A Markdown table with a row for each link, then the sums."""
    heads = ["prefill", "decode", *(f"{group.name}: heads, buffers" for group in transfer.kinds), "MiB"]
    lines = [f"| {' | '.join(heads)} |", "| ---: | ---: " + "| --- " * len(transfer.kinds) + "| ---: |"]
    for (source, target), sent in transfer.links().items():
        cells = [_cell(group, transfer.part(group, source, target)) for group in transfer.kinds]
        lines.append(f"| {source} | {target} | {' | '.join(cells)} | {sent / MIB:,.2f} |")
    return "\n".join([*lines, "", *_sums(transfer)])


def _sums(transfer: Transfer) -> list[str]:
    sums = transfer.sums()
    cached = f"{transfer.prefix:,} of them on the decode server"
    return [
        f"{sums['bytes'] / MIB:,.2f} MiB for {transfer.tokens:,} tokens ({cached}), {sums['of_least']:.2f} of the least.",
        f"Copies of replicated heads avoided: {sums['avoided_bytes'] / MIB:,.2f} MiB.",
        f"The busiest prefill rank sends {sums['busiest_of_mean']:.2f} of the mean.",
    ]


def _cell(group: Group, part: plan.Share) -> str:
    """``4 of 8 from 0 to 0, 10 of 10``: heads sent of the model's, first head on each side, and buffers sent of the rank's."""
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
        help="which KV heads each rank of a prefill server sends to each rank of a decode server",
        description="For one request: what each prefill rank sends to each decode rank, how many copies are avoided, and how evenly the "
        "ranks work. Calculated; no server is asked.",
    )
    option = parser.add_argument
    option("model", metavar="SIZE", help=f"one of {', '.join(SIZES)}")
    option("--prefill-tp", type=int, required=True, metavar="N", help="--tp-size of the prefill server")
    option("--decode-tp", type=int, required=True, metavar="N", help="--tp-size of the decode server")
    option("--tokens", type=int, default=8000, metavar="N", help="tokens of the prompt (default 8000)")
    option("--prefix", type=int, default=0, metavar="N", help="tokens of the prompt that the decode server has in its cache (default 0)")
    option("--page-size", type=int, default=1, metavar="N", help="--page-size of both servers (default 1)")
    formats = f"--kv-cache-dtype of both servers: {', '.join(KV_BYTES)} (default bfloat16)"
    option("--kv-cache-dtype", choices=KV_BYTES, default="bfloat16", metavar="FORMAT", help=formats)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.page_size < 1 or arguments.tokens < 1:
        raise ValueError(f"--page-size {arguments.page_size}, --tokens {arguments.tokens}: both must be at least 1")
    if not 0 <= arguments.prefix < arguments.tokens:
        raise ValueError(f"--prefix {arguments.prefix}: must be from 0 to {arguments.tokens - 1}, less than --tokens")
    kinds = groups(arguments.model, arguments.kv_cache_dtype)
    sizes = (arguments.prefill_tp, arguments.decode_tp, arguments.tokens, arguments.page_size, arguments.prefix)
    transfer = Transfer(kinds, *sizes)
    if arguments.json:
        print(json.dumps(transfer.data(), indent=2))
    else:
        print(markdown(transfer) if arguments.markdown else text(transfer, terminal.width()))
    return 0
