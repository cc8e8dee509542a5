"""A call that must come is forced into a JSON array, which Gemma 4 was not trained to write; a strict one, into nothing. Needs no GPU."""

import json
import re
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["celsius", "kelvin"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "description": "Gets the weather of a town.", "parameters": PARAMETERS}
REQUESTS: dict[str, dict[str, Any]] = {
    "required": {"tool_choice": "required"},
    "named": {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    "required of a model that may think": {"tool_choice": "required", "chat_template_kwargs": {"enable_thinking": True}},
    "strict": {"tool_choice": "auto"},
}
THOUGHT = r"(<\|channel>thought\n(?s:.*?)<channel\|>)?"
CALL = re.compile(THOUGHT + r'<\|tool_call>call:get_weather\{((?:city|unit):<\|"\|>.*?<\|"\|>,?){2}\}<tool_call\|>')


def main() -> int:
    """Ask for the weather in a town, of a tool that needs a unit too, which the model was never asked for: what it wrote, and the call."""
    options = {"skip_tokenizer_init": False, "tool_call_parser": "gemma4", "reasoning_parser": "gemma4"}
    seen = engines.ask(shipped.target("tiny-31b"), "tool_choice_json:answers", None, **options)
    if not isinstance(seen, dict):
        return int(case.verdict("answers", seen))
    for name, (written, arguments) in seen.items():
        print(f"{name}: the model wrote {written!r}, the client got {arguments!r}")
    found = {name: ["Gemma 4's syntax" if CALL.match(written) else "another", follows(got)] for name, (written, got) in seen.items()}
    return int(case.verdict({name: ["Gemma 4's syntax", "a call that follows the schema"] for name in REQUESTS}, found))


def follows(arguments: str | None) -> str:
    """What a client can make of a call's arguments."""
    import jsonschema  # type: ignore[import-untyped]

    if arguments is None:
        return "no call"
    valid = jsonschema.Draft202012Validator(PARAMETERS).is_valid(json.loads(arguments))
    return "a call that follows the schema" if valid else "a call that does not follow the schema"


def answers(engine: Any, _extra: None) -> dict[str, tuple[str, str | None]]:
    """The client: for each request the text that the model wrote, and the arguments of the call that SGLang's chat endpoint read in it."""
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

    chat, found = OpenAIServingChat(engine.tokenizer_manager, engine.template_manager), {}
    for name, options in REQUESTS.items():
        function = {**TOOL, "strict": name == "strict"}
        request = ChatCompletionRequest(
            model="tiny",
            messages=[{"role": "user", "content": "What is the weather in Belm?"}],
            tools=[{"type": "function", "function": function}],
            temperature=0,
            max_tokens=60,
            return_token_ids=True,
            **options,
        )
        (choice,) = engine.loop.run_until_complete(chat.handle_request(request, None)).choices
        written = engine.tokenizer_manager.tokenizer.decode(choice.response_token_ids, spaces_between_special_tokens=False)
        calls = choice.message.tool_calls or []
        found[name] = (written, calls[0].function.arguments if calls else None)
    return found


if __name__ == "__main__":
    sys.exit(main())
