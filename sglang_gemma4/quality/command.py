"""`sglang-gemma4 eval` and `sglang-gemma4 compare`: arguments in, a printed result and an exit status out."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

Commands = Any
"""argparse's subparsers action, which has no public name."""

SHIPPED_GATES = "shipped"


def add_commands(commands: Commands) -> None:
    """Add ``eval`` and ``compare`` to the subparsers of the command line; their modules are imported when they run."""
    evaluate = commands.add_parser(
        "eval",
        help="measure a running server's quality: MMLU, colours of images, perplexity",
        description="Ask a running server, and write one line of JSON for each question. compare reads two such files.",
    )
    kinds = evaluate.add_subparsers(required=True, metavar="KIND")

    mmlu = kinds.add_parser(
        "mmlu",
        help="four-choice questions, graded by sgl-eval",
        description="MMLU with sgl-eval's loader, prompt and grading. Where MMLU cannot be fetched, questions on the tiny models' training "
        "text are asked instead. stderr and the first line of --out say which was used and why.",
    )
    mmlu.add_argument(
        "--dataset",
        choices=("auto", "mmlu", "world"),
        default="auto",
        help="world: the tiny models' questions; auto: MMLU, or world where it cannot be fetched",
    )
    _shared(mmlu, "mmlu", questions=500)
    mmlu.set_defaults(run=_mmlu)

    colors = kinds.add_parser("colors", help="name the colours of generated images")
    _shared(colors, "colors", questions=30)
    colors.set_defaults(run=_colors)

    text = kinds.add_parser("text", help="perplexity on a text file")
    text.add_argument("file", type=Path, metavar="FILE", help="UTF-8 text")
    text.add_argument("--window", type=int, default=1024, metavar="N", help="tokens in one request (default %(default)s)")
    text.add_argument(
        "--stride",
        type=int,
        default=512,
        metavar="N",
        help="tokens between two windows; the rest of a window is context (default %(default)s)",
    )
    _server(text, "text")
    text.set_defaults(run=_text)

    compare = commands.add_parser(
        "compare",
        help="compare two files of eval: accuracy, McNemar's test, agreement, first differing tokens",
        description="A is the baseline, B the candidate. With a gate the exit status is 1 where B loses more than the gate allows.",
    )
    compare.add_argument("a", type=Path, metavar="A.jsonl", help="the baseline: a file of eval")
    compare.add_argument("b", type=Path, metavar="B.jsonl", help="the candidate: a file of eval on the same questions")
    compare.add_argument(
        "--gate",
        nargs="?",
        const=SHIPPED_GATES,
        metavar="FILE",
        help="check the difference against a gate file (without FILE: the package's own)",
    )
    compare.add_argument(
        "--switch", metavar="NAME", help="with --gate, which it implies: the file's section, for example SGLANG_GEMMA4_MODEL_FIXES"
    )
    compare.add_argument("--json", action="store_true", help="print JSON")
    compare.set_defaults(run=_compare)


def _server(parser: argparse.ArgumentParser, kind: str) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:30000", metavar="URL", help="the running server (default %(default)s)")
    parser.add_argument("--api-key", metavar="KEY", help="the server's --api-key, where it has one")
    parser.add_argument("--model", metavar="NAME", help="the model's name (default: the one that the server serves)")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="requests at once (default %(default)s)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(f"{kind}.jsonl"),
        metavar="FILE",
        help="where to write; an unfinished file is continued (default %(default)s)",
    )


def _shared(parser: argparse.ArgumentParser, kind: str, questions: int) -> None:
    parser.add_argument("--questions", type=int, default=questions, metavar="N", help="number of questions (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which questions are drawn (default %(default)s)")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="limit of an answer (default: 2048 for MMLU, 16 for world, 64 for colors)"
    )
    parser.add_argument(
        "--no-logprobs", action="store_true", help="ask for no log-probabilities; compare then shows no first differing token"
    )
    _server(parser, kind)


def _mmlu(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.quality import questions

    server = _reachable(arguments)
    made = questions.four_choice(arguments.dataset, arguments.questions, arguments.seed)
    print(f"dataset: {made.dataset['name']} ({made.dataset['why']})", file=sys.stderr)
    return _ask("mmlu", server, made, arguments)


def _colors(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.quality import questions

    return _ask("colors", _reachable(arguments), questions.colour_images(arguments.questions, arguments.seed), arguments)


def _reachable(arguments: argparse.Namespace) -> Any:
    """The server's endpoint; ValueError if the server does not answer, before anything is fetched or written."""
    from sglang_gemma4.quality.endpoint import Endpoint

    if arguments.concurrency < 1:
        raise ValueError(f"--concurrency {arguments.concurrency} sends nothing; give 1 or more")
    server = Endpoint.at(arguments.url, arguments.api_key)
    server.model(arguments.model)
    return server


def _ask(kind: str, server: Any, made: Any, arguments: argparse.Namespace) -> int:
    from sglang_gemma4.quality import asking

    options = {name: getattr(arguments, name) for name in ("model", "concurrency", "max_tokens")}
    summary = asking.ask(kind, server, arguments.out, made, logprobs=not arguments.no_logprobs, **options)
    return _print({"eval": kind, "dataset": made.dataset["name"], **summary, "written to": str(arguments.out)})


def _text(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.quality import perplexity

    options = {name: getattr(arguments, name) for name in ("model", "window", "stride", "concurrency")}
    summary = perplexity.evaluate(_reachable(arguments), arguments.out, arguments.file, **options)
    return _print({"eval": "text", "file": str(arguments.file), **summary, "written to": str(arguments.out)})


def _compare(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.quality import compare, gates

    gated = arguments.gate is not None or arguments.switch is not None
    path = gates.SHIPPED if arguments.gate in (None, SHIPPED_GATES) else Path(arguments.gate)
    limits = gates.read(path, arguments.switch) if gated else {}
    made = compare.compare(arguments.a, arguments.b)
    broken = gates.exceeded(made, limits) if gated else []
    if arguments.json:
        print(json.dumps({**made, "gate": {"switch": arguments.switch, "limits": limits, "exceeded": broken} if gated else None}, indent=2))
        return int(bool(broken))
    print(compare.text(made))
    if gated:
        name = arguments.switch or "default"
        print("\n".join([f"gate [{name}] EXCEEDED", *(f"  {line}" for line in broken)]) if broken else f"gate [{name}] held")
    return int(bool(broken))


def _print(summary: dict[str, Any]) -> int:
    for name, value in summary.items():
        if value is not None:
            print(f"{name.replace('_', ' '):<22} {value:.6g}" if isinstance(value, float) else f"{name.replace('_', ' '):<22} {value}")
    return 0
