"""``sglang-gemma4 capacity``: which model fits which GPU, with how many tokens and requests, in stock and here."""

import argparse
import itertools
import json
from collections.abc import Sequence
from typing import Any

from sglang_gemma4 import terminal
from sglang_gemma4.memory import capacity, capacity_rows, given
from sglang_gemma4.memory.capacity import GIB, Server
from sglang_gemma4.memory.capacity_rows import ANSWER, CHOICES, PROMPTS, Row
from sglang_gemma4.tiny import quantisation
from sglang_gemma4.tiny.quantisation import FORMATS, Format, format_of
from sglang_gemma4.tiny.real_sizes import SIZES, target

WITH_SCALES = ("int8_per_token_head", "fp8_per_token_head")
"""The names in ``kernels.kv_cache.formats``, repeated here because that module needs torch."""
PLACE = ("model", "weights", "GPU", "MTP")
FOUND = ("engine", "fraction", "chosen by", "KV GiB", "full tokens", "sliding tokens", *(f"{prompt:,}" for prompt in PROMPTS))
NUMBERS = (1, 3, 4, 5, 6, 7, 8, 9)
"""Indices in :data:`FOUND` of the columns that hold numbers."""


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table of ``rows``."""
    heads = [*PLACE, *FOUND[:6], *(f"requests of {prompt}" for prompt in FOUND[6:])]
    return "\n".join(terminal.markdown(heads, [_place(row) + _found(row, 10) for row in rows], _right(len(PLACE))))


def text(rows: Sequence[Row], limit: int | None) -> str:
    """Text for a terminal of ``limit`` columns.

    One table if it fits or ``limit`` is None, else one for each model, GPU and MTP.
    """
    flat = terminal.table([*PLACE, *FOUND], [_place(row) + _found(row) for row in rows], _right(len(PLACE)))
    lines = flat if limit is None or max(map(len, flat)) <= limit else _grouped(rows, limit)
    chosen = "; ".join(f"{name} ({what})" for name, what in CHOICES.items() if name in {row.chosen_by for row in rows})
    notes = (
        f"{PROMPTS[0]:,} to {PROMPTS[-1]:,}: requests at once with so many prompt tokens and {ANSWER} of answer.",
        f"fraction: --mem-fraction-static. Who chose it: {chosen}.",
    )
    return "\n".join([*lines, "", *(line for note in notes for line in terminal.wrapped(note, limit))])


def _grouped(rows: Sequence[Row], limit: int) -> list[str]:
    """A heading for each model, GPU and MTP, with its engines' rows below. Column names of two words take two lines."""
    heads = ("", "", "chosen", "KV", "full", "sliding", ""), ("engine", "fraction", "by", "GiB", "tokens", "tokens", *FOUND[6:])
    cells = [*heads, *(_found(row) for row in rows)]
    wide, narrow = (terminal.table((), cells, _right(0), gap=gap) for gap in ("  ", " "))
    aligned = wide if max(map(len, wide)) <= limit else narrow
    lines = aligned[:2]
    for place, members in itertools.groupby(zip(rows, aligned[2:], strict=True), lambda one: _place(one[0])):
        name, weights, gpu, mtp = place
        lines += ["", f"{name} in {weights} on {gpu}, {'with' if mtp == 'yes' else 'without'} MTP", *(line for _, line in members)]
    return lines


def _right(before: int) -> list[int]:
    return [before + column for column in NUMBERS]


def _place(row: Row) -> list[str]:
    return [row.model, row.quantization, row.gpu.name, "yes" if row.mtp else "no"]


def _found(row: Row, columns: int = 0) -> list[str]:
    """Cells of what an engine has. A problem takes one cell, and empty cells fill the row up to ``columns``."""
    cells = [row.engine, f"{row.fraction:.3f}", row.chosen_by, f"{max(0.0, row.kv_bytes) / GIB:.1f}"]
    if row.pools is None:
        return [*cells, row.problem, *[""] * (columns - len(cells) - 1)]
    return [*cells, f"{row.pools.full:,}", f"{row.pools.sliding:,}", *(f"{found:,}" for found in row.requests)]


def add_command(commands: Any) -> None:
    """Add ``capacity`` to the subcommands of the command line."""
    parser = commands.add_parser(
        "capacity",
        help="calculate which model fits which GPU, with how many tokens and requests: stock SGLang and this package",
        description="Calculated from the model's config, for pages of one token and the radix cache. A row has the tokens of both KV "
        f"pools, and the requests that run at once: of {', '.join(map(str, PROMPTS))} prompt tokens and {ANSWER} of answer. Each engine "
        "has two rows: SGLang's own --mem-fraction-static, and the one that SGLANG_GEMMA4_RESERVE_GIB=auto chooses. Where SGLang's leaves "
        "less than a request, this package takes auto's without its margin of 2 GiB. A server's own log has its exact sizes.",
    )
    parser.add_argument("names", nargs="*", metavar="SIZE", help=f"{', '.join(SIZES)} (default: all)")
    parser.add_argument(
        "--gpu",
        "--card",
        dest="gpu",
        action="append",
        metavar="GPU",
        help="H100, L40S, or GB: 24, 32, 48, 80, 141 (default: these five), or GiB",
    )
    parser.add_argument("--mtp", choices=("yes", "no"), help="with or without a draft (default: both)")
    parser.add_argument("--mem-fraction-static", type=float, metavar="F", help="SGLang's flag; one row per engine for it")
    parser.add_argument("--max-running-requests", type=int, metavar="N", help="SGLang's flag (default: 48 with MTP, none without)")
    parser.add_argument("--chunked-prefill-size", type=int, metavar="N", help="SGLang's flag (default: by the GPU)")
    parser.add_argument("--speculative-num-draft-tokens", type=int, default=4, metavar="N", help="SGLang's flag (default 4)")
    parser.add_argument("--language-model-only", action="store_true", help="SGLang's flag: no towers, and nothing kept for images")
    parser.add_argument(
        "--mm-feature-transport", choices=("cpu", "cuda_ipc"), default="cuda_ipc", help="SGLang's flag (the package's default: cuda_ipc)"
    )
    parser.add_argument("--kv-bytes", type=float, default=2, metavar="B", help="bytes per KV element: 2 for bfloat16, 1 for fp8")
    parser.add_argument("--kv-cache-dtype", choices=WITH_SCALES, help="SGLang's flag: one byte per element, and a scale per token and head")
    parser.add_argument(
        "--quantization",
        action="append",
        metavar="FORMAT",
        help=f"format of the weights: bfloat16 (the default), {', '.join(FORMATS)}, or all; may be given several times",
    )
    parser.add_argument("--tp-size", "--tp", type=int, default=1, metavar="N", help="SGLang's flag: ranks, each of which holds every token")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    fraction = arguments.mem_fraction_static
    if fraction is not None and not 0 < fraction < 1:
        raise ValueError(f"--mem-fraction-static {fraction} is not between 0 and 1; SGLang's is usually 0.8 to 0.9")
    if arguments.kv_bytes not in (1, 2, 4):
        raise ValueError(f"--kv-bytes {arguments.kv_bytes:g} is not 1, 2 or 4; give 2 for bfloat16")
    for flag in ("max_running_requests", "chunked_prefill_size", "speculative_num_draft_tokens"):
        value = getattr(arguments, flag)
        if value is not None and value < 1:
            raise ValueError(f"--{flag.replace('_', '-')} {value} is not a positive number")
    cards = [capacity.card(said) for said in arguments.gpu] if arguments.gpu else list(capacity.CARDS.values())
    servers = [
        Server(
            mtp,
            arguments.max_running_requests,
            arguments.chunked_prefill_size,
            arguments.speculative_num_draft_tokens,
            not arguments.language_model_only,
            arguments.mm_feature_transport == "cuda_ipc",
            arguments.tp_size,
        )
        for mtp in (False, True)
        if arguments.mtp in (None, "yes" if mtp else "no")
    ]
    kv_bytes, scale_bytes = (1, 4) if arguments.kv_cache_dtype else (arguments.kv_bytes, 0)
    names = arguments.names or list(SIZES)
    forms = _forms(arguments.quantization or ["bfloat16"])
    for name, form in itertools.product(arguments.names if arguments.quantization and "all" not in arguments.quantization else [], forms):
        if form is not None and name in SIZES:
            quantisation.check_sizes(name, target(name)["text_config"], form)
    rows = list(capacity_rows.rows(names, cards, servers, fraction, kv_bytes, given.request_tokens(), scale_bytes, forms))
    if arguments.json:
        print(json.dumps([row.as_data() for row in rows], indent=2))
    else:
        print(markdown(rows) if arguments.markdown else text(rows, terminal.width()))
    return 0


def _forms(said: Sequence[str]) -> list[Format | None]:
    """The formats that were asked for; None stands for bfloat16."""
    names = ["bfloat16", *FORMATS] if "all" in said else said
    return [None if name == "bfloat16" else format_of(name) for name in names]
