"""OpenAI's client against SGLang's own HTTP application, in the engine's process: ``client="chat_client:send"``.

``extra["requests"]`` are the arguments of chat completions, sent at once. An answer's ``text`` is a JSON object: ``content``, ``thought``,
``calls`` (name and arguments, as the client has put them together), ``finish``, and where not streamed ``raw`` (the text that the model
wrote) and ``counts`` (tokens of thoughts and of all), or ``status`` and ``error``.
"""

import asyncio
import json
from typing import Any


def send(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """All requests of the group; the answers in their order."""
    found: list[dict[str, Any]] = engine.loop.run_until_complete(_send(engine, group["extra"]["requests"]))
    return found


async def _send(engine: Any, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    import httpx
    import openai
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

    app.state.openai_serving_chat = OpenAIServingChat(engine.tokenizer_manager, engine.template_manager)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, timeout=600) as http:
        client = openai.AsyncOpenAI(base_url="http://engine/v1", api_key="none", http_client=http, max_retries=0)
        return await asyncio.gather(*(_ask(client, engine.tokenizer_manager.tokenizer, request) for request in requests))


async def _ask(client: Any, tokenizer: Any, request: dict[str, Any]) -> dict[str, Any]:
    import openai

    arguments = {"model": "tiny", "temperature": 0, "max_tokens": 200, **request}
    body = {"return_token_ids": not arguments.get("stream"), **arguments.pop("extra_body", {})}
    try:
        if arguments.get("stream"):
            said, tokens, raw = await _streamed(await client.chat.completions.create(**arguments, extra_body=body)), [], None
        else:
            response = await client.chat.completions.create(**arguments, extra_body=body)
            (choice,) = response.choices
            message = choice.message
            said = {"content": message.content, "thought": message.reasoning_content, "finish": choice.finish_reason}
            said["counts"] = [response.usage.reasoning_tokens, response.usage.completion_tokens]
            said["calls"] = [[call.function.name, call.function.arguments] for call in message.tool_calls or []]
            tokens = choice.response_token_ids
            raw = tokenizer.decode(tokens, spaces_between_special_tokens=False)
    except openai.APIStatusError as error:
        said, tokens, raw = {"status": error.status_code, "error": error.message}, [], None
    return {"token_ids": tokens, "text": json.dumps({**said, "raw": raw}), "logprobs": [], "meta_info": {}}


async def _streamed(chunks: Any) -> dict[str, Any]:
    """The answer that its deltas make, joined as OpenAI's own client joins them: by a call's index."""
    said: dict[str, Any] = {"content": "", "thought": "", "finish": None}
    calls: dict[int, list[str]] = {}
    async for chunk in chunks:
        for choice in chunk.choices:
            said["content"] += choice.delta.content or ""
            said["thought"] += getattr(choice.delta, "reasoning_content", None) or ""
            said["finish"] = choice.finish_reason or said["finish"]
            for delta in choice.delta.tool_calls or []:
                call = calls.setdefault(delta.index, ["", ""])
                call[0] += delta.function.name or ""
                call[1] += delta.function.arguments or ""
    return {**said, "calls": [calls[index] for index in sorted(calls)]}
