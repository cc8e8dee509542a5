"""The gemma4 parsers of thoughts and tool calls are used where the operator named none."""

from typing import Any

from sglang_gemma4 import patching
from sglang_gemma4.patching import Hook, Patch
from sglang_gemma4.switches import WITHOUT


def choose(result: dict[str, str], server_args: Any) -> dict[str, str]:
    """After ``_architecture_parser_defaults``."""
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.arg_groups.overrides import resolving_view

    from sglang_gemma4.serving.parser_choice import choices

    arguments = resolving_view(server_args)
    if None not in (arguments.reasoning_parser, arguments.tool_call_parser):
        return result
    chosen = choices(model_config_of(server_args).hf_config, arguments)
    if chosen:
        named = " and ".join(f"--{name.replace('_', '-')} {value}" for name, value in chosen.items())
        said = f"{named}, since none was given ({WITHOUT}=parser_defaults leaves answers as the model writes them)"
        patching.tell("parser_defaults", said)
    return {**result, **chosen}


PATCH = Patch(
    switch="SGLANG_GEMMA4_ANSWER_PARSER",
    why="Without --tool-call-parser and --reasoning-parser stock returns a Gemma 4 answer's calls and thoughts as raw text.",
    evidence="srt/parser/template_detection.py:900 (another architecture's defaults) · crash_repro/tool_parser_default.py",
    remove_when="SGLang chooses Gemma 4's parsers itself.",
    hooks=(Hook("sglang.srt.parser.template_detection._architecture_parser_defaults", "after", choose, "369df0ad2203"),),
)
