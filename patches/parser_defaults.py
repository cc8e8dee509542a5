"""The gemma4 parsers of thoughts and tool calls are used where the operator named none."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, tell
from sglang_gemma4.switches import WITHOUT


def choose(result: dict[str, str], server_args: Any) -> dict[str, str]:
    """After ``_architecture_parser_defaults``."""
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.arg_groups.overrides import resolving_view

    given = resolving_view(server_args)
    missing = [field for field in ("reasoning_parser", "tool_call_parser") if getattr(given, field) is None]
    kind = str(getattr(model_config_of(server_args).hf_config, "model_type", "")) if missing else ""
    if not kind.startswith("gemma4") or kind.endswith("assistant"):
        return result
    named = " and ".join(f"--{field.replace('_', '-')} gemma4" for field in missing)
    tell("parser_defaults", f"{named}, since none was given ({WITHOUT}=parser_defaults leaves answers as the model writes them)")
    return {**result, **dict.fromkeys(missing, "gemma4")}


PATCH = Patch(
    switch="SGLANG_GEMMA4_ANSWER_PARSER",
    why="Without --tool-call-parser and --reasoning-parser stock returns a Gemma 4 answer's calls and thoughts as raw text.",
    evidence="srt/parser/template_detection.py:900 (another architecture's defaults) · crash_repro/tool_parser_default.py",
    remove_when="SGLang chooses Gemma 4's parsers itself.",
    hooks=(Hook("sglang.srt.parser.template_detection._architecture_parser_defaults", "after", choose, "369df0ad2203"),),
)
