"""With a reasoning parser each JSON schema and regex is refused under ``--grammar-backend llguidance``. Needs no GPU."""

import json
import re
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["yes", "no"]}}, "required": ["a"], "additionalProperties": False}
GRAMMARS: dict[str, dict[str, str]] = {"json_schema": {"json_schema": json.dumps(SCHEMA)}, "regex": {"regex": "[a-z]{3}"}}


def main() -> int:
    """What is answered to a prompt with each, by a server that reads thoughts."""
    options: dict[str, Any] = {"skip_tokenizer_init": False, "reasoning_parser": "gemma4", "grammar_backend": "llguidance"}
    options["constrained_json_disable_any_whitespace"] = True  # the tiny model writes nothing else where it may
    seen = engines.ask(shipped.target(), "grammar_backends:answers", **options)
    print(seen)
    found = {name: follows(name, text) for name, text in seen.items()} if isinstance(seen, dict) else seen
    return int(case.verdict(dict.fromkeys([*GRAMMARS, "json_schema behind a thought"], True), found))


def follows(name: str, text: str) -> bool:
    """Whether an answer is as its grammar has it."""
    if name == "regex":
        return bool(re.fullmatch("[a-z]{3}", text))
    answer = text.rpartition("<channel|>")[2] if "thought" in name else text
    return bool(re.fullmatch(r'\s*\{\s*"a"\s*:\s*"(yes|no)"\s*\}\s*', answer))


def answers(engine: Any, _extra: None) -> dict[str, str]:
    """The client; the last answer ends its thought at once, and the grammar holds behind it."""
    prompt = "Who is the ruler?"
    found = {name: generate(engine, prompt, False, grammar) for name, grammar in GRAMMARS.items()}
    return {**found, "json_schema behind a thought": generate(engine, prompt, True, GRAMMARS["json_schema"])}


def generate(engine: Any, prompt: str, thinks: bool, parameters: dict[str, Any]) -> str:
    """An answer's text, or the error."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    end = engine.tokenizer_manager.tokenizer.convert_tokens_to_ids("<channel|>")
    if thinks:
        parameters = {**parameters, "logit_bias": {str(end): 50.0}}  # it ends its thought, and writes no such token by the grammar
    sampling = {"max_new_tokens": 40, "temperature": 0, "skip_special_tokens": False, **parameters}

    async def ask() -> str:
        request = GenerateReqInput(text=prompt, sampling_params=sampling, require_reasoning=thinks)
        try:
            return str((await anext(engine.tokenizer_manager.generate_request(request, None)))["text"]).removesuffix("<turn|>")
        except Exception as error:
            return f"{type(error).__name__}: {getattr(error, 'detail', error)}"

    return str(engine.loop.run_until_complete(ask()))


if __name__ == "__main__":
    sys.exit(main())
