"""Clients for ``Group.client``: requests that may be refused or never answered. What became of each is in its ``text``."""

import asyncio
import json
from typing import Any

NEVER = "no answer"


def ask(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """All prompts at once, or in turn with ``extra["turns"]``; each has ``extra["seconds"]``. Afterwards the scheduler must be idle."""
    answers: list[dict[str, Any]] = engine.loop.run_until_complete(_ask(engine, group))
    return answers


async def _ask(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    waits = [
        _one(engine, place, *pair, group["extra"]["seconds"])
        for place, pair in enumerate(zip(group["prompts"], group["sampling"], strict=True))
    ]
    answers = [await one for one in waits] if group["extra"].get("turns") else await asyncio.gather(*waits)
    await engine.tokenizer_manager.get_internal_state()
    flushed = await engine.tokenizer_manager.flush_cache(timeout_s=30.0)
    if not flushed.success:
        raise RuntimeError(f"the scheduler is not idle after the last answer: {flushed.message}")
    return answers


async def _one(engine: Any, place: int, prompt: list[int], sampling: dict[str, Any], seconds: float) -> dict[str, Any]:
    asked = {"temperature": 0, "ignore_eos": True, **sampling}
    try:
        output = await asyncio.wait_for(engine.async_generate(input_ids=prompt, sampling_params=asked, rid=f"place{place}-"), seconds)
    except TimeoutError:
        engine.tokenizer_manager.abort_request(f"place{place}-")
        return _answer([], NEVER, {})
    except Exception as error:
        return _answer([], str(error), {})
    return _answer(output["output_ids"], "", {key: value for key, value in output["meta_info"].items() if "logprobs" not in key})


def _answer(tokens: list[int], text: str, meta: dict[str, Any]) -> dict[str, Any]:
    return {"token_ids": tokens, "text": text, "logprobs": [], "meta_info": meta}


def ask_pair(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """Each prompt to a ``pd_pair``; one of more than ``extra["most"]`` tokens to the decode server alone, which is to refuse it."""
    answers = []
    for prompt, sampling in zip(group["prompts"], group["sampling"], strict=True):
        request = {"input_ids": [prompt], "sampling_params": {"temperature": 0, "ignore_eos": True, **sampling}}
        if len(prompt) > group["extra"]["most"]:
            engine.to_decode(**request)
            said = engine.answer()
        else:
            said = engine.generate(**request)
        (found,) = said if isinstance(said, list) else [said]
        answers.append(_answer(found.get("output_ids", []), found.get("error") or json.dumps(found) * ("output_ids" not in found), {}))
    return answers
