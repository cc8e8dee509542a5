"""A JSON answer that was asked for, of a model that may think first and does not: nothing holds it to its schema. Needs no GPU."""

import json
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

SCHEMA = {"type": "object", "properties": {"sky": {"enum": ["sunny", "rainy"]}}, "required": ["sky"], "additionalProperties": False}


def ask(engine: Any, _extra: None) -> Any:
    """What a chat completion returns behind a tool's result, which the tiny model answers without a thought."""
    import httpx
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

    from sglang_gemma4.tiny import dialogues

    async def post() -> Any:
        app.state.openai_serving_chat = OpenAIServingChat(engine.tokenizer_manager, engine.template_manager)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://engine", timeout=120) as client:
            call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Belm"}'}}
            conversation = [
                {"role": "user", "content": dialogues.WEATHER_ASKS[0].format("Belm")},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": "sunny"},
            ]
            wanted = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
            body = {"model": "tiny", "messages": conversation, "tools": dialogues.TOOLS, "temperature": 0, "max_tokens": 60}
            body |= {"response_format": wanted, "chat_template_kwargs": {"enable_thinking": True}}
            return (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]

    return engine.loop.run_until_complete(post())["content"]


def main() -> int:
    """One question with a schema for its answer."""
    flags = {"reasoning_parser": "gemma4", "tool_call_parser": "gemma4", "constrained_json_disable_any_whitespace": True}
    seen = engines.ask(shipped.target("tiny-26b-a4b"), "thinking_json:ask", skip_tokenizer_init=False, **flags)
    try:
        follows = json.loads(seen)["sky"] in ("sunny", "rainy")
    except (ValueError, KeyError, TypeError):
        follows = False
    print(f"the answer: {seen!r}")
    return int(case.verdict("JSON that follows the schema", "JSON that follows the schema" if follows else "other text"))


if __name__ == "__main__":
    sys.exit(main())
