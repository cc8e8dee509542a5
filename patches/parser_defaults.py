"""The gemma4 parsers of thoughts and tool calls are used where the operator named none, with any grammar backend."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, tell
from sglang_gemma4.patching.switches import WITHOUT


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


def without_masks(_result: None, backend: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``ReasonerGrammarBackend.__init__``, which a reasoning parser puts around the grammar backend.

    It takes three functions from that backend for answers without a grammar (``--enable-strict-thinking``); only xgrammar's has them, and
    only with it can there be such answers.
    """
    for name in ("allocate_vocab_mask", "move_vocab_mask", "apply_vocab_mask"):
        if not hasattr(backend.grammar_backend, name):
            setattr(backend.grammar_backend, name, None)


PATCH = Patch(
    switch="SGLANG_GEMMA4_ANSWER_PARSER",
    why="Without --tool-call-parser and --reasoning-parser stock returns a Gemma 4 answer's calls and thoughts as raw text. With a "
    "reasoning parser it answers each JSON schema and regex with status 400 under --grammar-backend llguidance or outlines.",
    evidence="srt/parser/template_detection.py:900 (another architecture's defaults) · crash_repro/tool_parser_default.py · "
    "srt/constrained/reasoner_grammar_backend.py:463 (allocate_vocab_mask) · crash_repro/grammar_backends.py",
    remove_when="SGLang chooses Gemma 4's parsers itself, and serves grammars of all its backends behind a thought.",
    hooks=(
        Hook("sglang.srt.parser.template_detection._architecture_parser_defaults", "after", choose, "369df0ad2203"),
        Hook("sglang.srt.constrained.reasoner_grammar_backend.ReasonerGrammarBackend.__init__", "after", without_masks, "6996b9d6ed4c"),
    ),
)
