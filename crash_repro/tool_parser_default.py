"""A Gemma 4 server without --tool-call-parser and --reasoning-parser: calls and thoughts reach the client as raw text. Needs no GPU."""

import sys
from pathlib import Path

import case  # type: ignore[import-not-found]
import tool_answers  # type: ignore[import-not-found]


def main() -> int:
    """The parsers that a server of a shipped tiny model reads its answers with."""
    tool_answers.load()
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.parser.template_detection import resolve_auto_parsers
    from sglang.srt.server_args import ServerArgs

    from sglang_gemma4 import tiny
    from sglang_gemma4.cpu.environment import default_engine_arguments

    model = Path(tiny.__file__).parent / "checkpoints" / "tiny-31b"
    arguments = ServerArgs(**default_engine_arguments({"model_path": str(model)}))
    resolve_auto_parsers(arguments)
    chosen = resolving_view(arguments)
    return int(case.verdict(("gemma4", "gemma4"), (chosen.reasoning_parser, chosen.tool_call_parser)))


if __name__ == "__main__":
    sys.exit(main())
