"""Requests for JSON answers, sent together and each with a schema of its own: ``client="json_client:send"``."""

import asyncio
import json
from typing import Any


def send(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers; ``meta_info["refused"]`` of one is the error. ``extra["together"]`` says how many run at once."""
    answers: list[dict[str, Any]] = engine.loop.run_until_complete(_all(engine, group))
    return answers


async def _all(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    room = asyncio.Semaphore(group["extra"]["together"])

    async def one(prompt: Any, sampling: dict[str, Any]) -> dict[str, Any]:
        async with room:
            try:
                found = await engine.async_generate(prompt=prompt, sampling_params=sampling)
            except ValueError as error:
                return _answer("", {"refused": str(error)})
        return _answer(found["text"], {"finish": found["meta_info"]["finish_reason"]["type"], "tokens": len(found["output_ids"])})

    return await asyncio.gather(*map(one, group["prompts"], group["sampling"]))


def _answer(text: str, about: dict[str, Any]) -> dict[str, Any]:
    return {"token_ids": [], "text": text, "logprobs": [], "meta_info": json.loads(json.dumps(about))}
