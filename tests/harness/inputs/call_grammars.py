"""Grammars of tool calls, compiled for the tiny models' vocabulary, and calls as the chat template renders them."""

import json
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import xgrammar

from sglang_gemma4.serving.tool_grammar import MARKERS, Markers, Thought, ToolGrammar, ToolSchema
from sglang_gemma4.tiny import chat_format, checkpoints
from sglang_gemma4.tiny.dialogues import Dialogue

COMPILED_WITHIN = 10.0
"""CPU seconds that a generated schema's grammar may take to be built and compiled, with the tiny models' vocabulary."""


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoints.SHIPPED / "tiny-31b")


@cache
def compiler() -> Any:
    stops = json.loads((checkpoints.SHIPPED / "tiny-31b" / "generation_config.json").read_text())["eos_token_id"]
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer(), vocab_size=len(tokenizer()), stop_token_ids=stops)
    return xgrammar.GrammarCompiler(info, cache_enabled=False)


@cache
def markers() -> Markers:
    ids = {marker: tokenizer().convert_tokens_to_ids(marker) for marker in MARKERS}
    return Markers.of(ids.get)


def answers(tools: Sequence[ToolSchema], parallel: bool = True, thought: Thought = "none") -> Callable[[str], bool]:
    """Whether an answer to a request that must call one of ``tools`` is allowed, and complete."""
    compile_grammar, tokens = compiler().compile_grammar, markers()
    began = time.process_time()
    grammar = compile_grammar(ToolGrammar(tools, tokens).required(parallel, thought))
    assert time.process_time() - began < COMPILED_WITHIN

    def accepts(text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(grammar)
        return all(matcher.accept_token(token) for token in tokenizer().encode(text, add_special_tokens=False)) and matcher.is_completed()

    return accepts


def rendered(*calls: tuple[str, Any], thought: str = "") -> str:
    """Calls as the chat template writes them into the model's turn."""
    message = {
        "role": "assistant",
        "content": "",
        "reasoning": thought,
        "tool_calls": [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls],
    }
    return chat_format.render(Dialogue([{"role": "user", "content": "?"}, message])).split(chat_format.MODEL_START)[-1]


def allows(schema: Any) -> Callable[[Any], bool]:
    """Whether the arguments of a tool with these parameters are accepted."""
    accepts = answers([ToolSchema("f", schema)])
    return lambda arguments: accepts(rendered(("f", arguments)))
