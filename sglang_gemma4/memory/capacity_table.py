"""``sglang-gemma4 capacity``: which model fits which card, with how many tokens and requests at once, stock beside this package."""

import argparse
import itertools
from collections.abc import Sequence
from typing import Any

from sglang_gemma4.memory import capacity, fractions, given, model_bytes
from sglang_gemma4.memory.capacity import GIB, Card, Pools, Server
from sglang_gemma4.memory.model_bytes import Need
from sglang_gemma4.tiny import quantisation
from sglang_gemma4.tiny.quantisation import FORMATS, Format, format_of, size_problem
from sglang_gemma4.tiny.real_sizes import SIZES, target

PROMPTS, ANSWER = (500, 2000, 8000, 32_000), 500
"""Tokens of the requests in the table."""
WITH_SCALES = ("int8_per_token_head", "fp8_per_token_head")
"""``kernels.kv_cache.formats``, whose module needs torch."""


def table(
    names: Sequence[str],
    cards: Sequence[Card],
    servers: Sequence[Server],
    fraction: float | None,
    kv_bytes: float,
    length: int | None,
    scale_bytes: float = 0,
    forms: Sequence[Format | None] = (None,),
) -> str:
    """Markdown table of tokens and requests at once for each size, card and server, or that the model does not fit.

    Args:
        fraction: --mem-fraction-static; None: SGLang's own, and the one that the calculated reserve leaves.
        length: ``SGLANG_GEMMA4_REQUEST_TOKENS``, or None.
        scale_bytes: of each token's head in the KV cache, beside its elements.
        forms: of the weights, None: bfloat16; those that do not divide a size have no row of it.
    """
    prompts = ", ".join(f"{prompt:,}" for prompt in PROMPTS)
    heads = [
        "model",
        "card",
        "MTP",
        "fraction",
        "KV GiB, stock / package",
        *(f"{arm}: {what}" for arm in ("stock", "package") for what in ("tokens", prompts)),
    ]
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, form in itertools.product(names, forms):
        if form is not None and name in SIZES and size_problem(target(name)["text_config"], form):
            continue
        for where in cards:
            for server in servers:
                needed = model_bytes.need(name, kv_bytes, server.tp, scale_bytes, form)
                for said, by_stock, by_package in _fractions(needed, where, server, fraction, length):
                    start = [f"{name} {form.name}" if form else name, where.name, "yes" if server.mtp else "no", said]
                    lines.append(f"| {' | '.join([*start, *_row(needed, where, server, by_stock, by_package, length)])} |")
    return "\n".join(lines)


def _fractions(
    needed: Need, where: Card, server: Server, fraction: float | None, length: int | None
) -> list[tuple[str, float, tuple[float, bool]]]:
    """For each row: the fraction as the table says it, stock's, and the package's with whether the calculated reserve chose it."""
    if fraction is not None:
        return [(f"{fraction:g}", fraction, (fraction, False))]
    by_rule, calculated = fractions.both(needed, where, server)
    ours = fractions.default(needed, where, server, length)
    said = f"{by_rule:.3f} (SGLang's)" if ours[0] == by_rule else f"{by_rule:.3f} (SGLang's), package {ours[0]:.3f}"
    return [(said, by_rule, ours), (f"{calculated:.3f} (calculated)", calculated, (calculated, True))]


def _row(needed: Need, where: Card, server: Server, by_stock: float, by_package: tuple[float, bool], length: int | None) -> list[str]:
    """GiB for KV, and of stock and of the package tokens and requests at once."""
    bytes_left = [
        capacity.budget(needed, where, server, by_stock, package=False),
        fractions.budget(needed, where, server, by_package[0], reserved=by_package[1]),
    ]
    found = [" / ".join(f"{max(0.0, left) / GIB:.1f}" for left in bytes_left)]
    for package, left in zip((False, True), bytes_left, strict=True):
        pools = _pools(needed, where, server, left, package, length)
        if isinstance(pools, str):
            found += [pools, "none"]
            continue
        found.append(f"{pools.full:,} / {pools.sliding:,}")
        found.append(", ".join(f"{pools.requests(prompt + ANSWER):,}" for prompt in PROMPTS))
    return found


def _pools(needed: Need, where: Card, server: Server, left: float, package: bool, length: int | None) -> Pools | str:
    """The pools, or why there are none."""
    if left <= 0:
        return f"{-left / GIB:.1f} GiB too few for weights"
    if not package:
        found = capacity.stock(needed, left, server)
        return found if found.sliding > needed.window else "too few for a request"
    try:
        return capacity.by_window(needed, left, server, where, length)
    except ValueError:
        return "too few for a request"


def add_command(commands: Any) -> None:
    """Add ``capacity`` to the subcommands of the command line."""
    parser = commands.add_parser(
        "capacity",
        help="which model fits which card, with how many tokens and requests: stock beside this package, by calculation",
        description="By calculation from the model's config, for pages of one token and the radix cache: tokens of both KV pools (full / "
        f"sliding), and how many requests of {', '.join(map(str, PROMPTS))} prompt tokens and {ANSWER} of answer run at once. Two rows "
        "for each server: with SGLang's own --mem-fraction-static, and with the one that SGLANG_GEMMA4_RESERVE_GIB=auto chooses; where "
        "SGLang's leaves less than a request this package takes that one without auto's 2 GiB of margin (the fraction then says so). "
        "An engine's own log says its sizes exactly.",
    )
    parser.add_argument("names", nargs="*", metavar="SIZE", help=f"{', '.join(SIZES)} (default: all)")
    parser.add_argument(
        "--card", action="append", metavar="CARD", help="H100, L40S, ..., 24, 32, 48, 80, 141 (GB; default: these five), or GiB"
    )
    parser.add_argument("--mtp", choices=("yes", "no"), help="with or without a draft (default: both)")
    parser.add_argument("--mem-fraction-static", type=float, metavar="F", help="SGLang's flag; one row for it")
    parser.add_argument("--max-running-requests", type=int, metavar="N", help="SGLang's flag (default: 48 with MTP, none without)")
    parser.add_argument("--chunked-prefill-size", type=int, metavar="N", help="SGLang's flag (default: by the card)")
    parser.add_argument("--speculative-num-draft-tokens", type=int, default=4, metavar="N", help="SGLang's flag (default 4)")
    parser.add_argument("--language-model-only", action="store_true", help="SGLang's flag: no towers, and nothing kept for images")
    parser.add_argument(
        "--mm-feature-transport", choices=("cpu", "cuda_ipc"), default="cuda_ipc", help="SGLang's flag (the package's default: cuda_ipc)"
    )
    parser.add_argument("--kv-bytes", type=float, default=2, metavar="B", help="bytes of a KV element: 2 for bfloat16, 1 for fp8")
    parser.add_argument("--kv-cache-dtype", choices=WITH_SCALES, help="SGLang's flag: one byte an element and a scale for each head")
    parser.add_argument(
        "--quantization",
        action="append",
        metavar="FORMAT",
        help=f"of the weights: bfloat16 (the default), {', '.join(FORMATS)}, or all; may be given several times",
    )
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel ranks; tokens are per rank, which is per model")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.tiny import real_sizes

    fraction = arguments.mem_fraction_static
    if fraction is not None and not 0 < fraction < 1:
        raise ValueError(f"--mem-fraction-static {fraction} is not between 0 and 1; SGLang's is usually 0.8 to 0.9")
    if arguments.kv_bytes not in (1, 2, 4):
        raise ValueError(f"--kv-bytes {arguments.kv_bytes:g} is not 1, 2 or 4; give 2 for bfloat16")
    for flag in ("max_running_requests", "chunked_prefill_size", "speculative_num_draft_tokens"):
        value = getattr(arguments, flag)
        if value is not None and value < 1:
            raise ValueError(f"--{flag.replace('_', '-')} {value} is not a positive number")
    cards = [capacity.card(said) for said in arguments.card] if arguments.card else list(capacity.CARDS.values())
    servers = [
        Server(
            mtp,
            arguments.max_running_requests,
            arguments.chunked_prefill_size,
            arguments.speculative_num_draft_tokens,
            not arguments.language_model_only,
            arguments.mm_feature_transport == "cuda_ipc",
            arguments.tp,
        )
        for mtp in (False, True)
        if arguments.mtp in (None, "yes" if mtp else "no")
    ]
    kv_bytes, scale_bytes = (1, 4) if arguments.kv_cache_dtype else (arguments.kv_bytes, 0)
    names = arguments.names or list(real_sizes.SIZES)
    forms = _forms(arguments.quantization or ["bfloat16"])
    for name, form in itertools.product(arguments.names if arguments.quantization and "all" not in arguments.quantization else [], forms):
        if form is not None and name in SIZES:
            quantisation.check_sizes(name, target(name)["text_config"], form)
    print(table(names, cards, servers, fraction, kv_bytes, given.request_tokens(), scale_bytes, forms))
    return 0


def _forms(said: Sequence[str]) -> list[Format | None]:
    """The formats asked for, None: bfloat16."""
    names = ["bfloat16", *FORMATS] if "all" in said else said
    return [None if name == "bfloat16" else format_of(name) for name in names]
