"""Ask the OpenAI chat endpoint's own code, in the engine's process: ``client="language_model_only_client:chat"``."""

import asyncio
import json
from typing import Any


def chat(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """One answer for each of ``extra["messages"]``; the text is the status and the body."""
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
    from starlette.requests import Request

    serving = OpenAIServingChat(engine.tokenizer_manager, engine.template_manager)

    async def ask(messages: Any) -> dict[str, Any]:
        request = ChatCompletionRequest(model="tiny", messages=messages, max_tokens=4, temperature=0)
        raw = Request({"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}, _disconnect)
        answer = await serving.handle_request(request, raw)
        status = getattr(answer, "status_code", 200)
        body = answer.body.decode() if hasattr(answer, "body") else answer.model_dump_json()
        return {"token_ids": [], "text": json.dumps([status, body]), "logprobs": [], "meta_info": {}}

    loop = getattr(engine, "loop", None) or asyncio.get_event_loop()
    return [loop.run_until_complete(ask(messages)) for messages in group["extra"]["messages"]]


async def _disconnect() -> dict[str, str]:
    await asyncio.sleep(3600)
    return {"type": "http.disconnect"}
