"""Clients for ``Group.client``: requests that start and are aborted at moments of each other's progress; many draws of one prompt.

Both run in the engine's process. They end with a round trip to the idle scheduler, so that its check of the empty pools has been made
(a leak ends the engine) before the next group is sent.
"""

import asyncio
from typing import Any


class Progress:
    """Output tokens of each request so far, by rid, and waiting for one to get somewhere."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self.ended: set[str] = set()
        self.changed = asyncio.Condition()

    async def at(self, rid: str, tokens: int) -> None:
        """Wait until ``rid`` has given that many tokens; -1 waits for its end."""
        async with self.changed:
            await self.changed.wait_for(lambda: rid in self.ended or 0 <= tokens <= self.tokens.get(rid, -1))

    async def report(self, rid: str, tokens: int, ended: bool = False) -> None:
        async with self.changed:
            self.tokens[rid] = tokens
            if ended:
                self.ended.add(rid)
            self.changed.notify_all()


def play(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """Send each prompt in its own time.

    ``extra["requests"]`` holds for each prompt its ``rid`` and, where wanted, ``after`` (rid and tokens of another request to wait for,
    -1 for its end), ``abort_at`` (own tokens at which it is aborted; 0 at once), ``top_logprobs`` and ``images`` (paths).
    """
    return engine.loop.run_until_complete(_play(engine, group))  # type: ignore[no-any-return]


async def _play(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    given, plans, progress = group["sampling"], group["extra"]["requests"], Progress()
    sampling = given if isinstance(given, list) else [given] * len(plans)
    requests = zip(group["prompts"], sampling, plans, strict=True)
    answers = await asyncio.gather(*(_one(engine, progress, *request) for request in requests))
    await engine.tokenizer_manager.get_internal_state()
    flushed = await engine.tokenizer_manager.flush_cache()
    if not flushed.success:
        raise RuntimeError(f"the scheduler is not idle after the last answer: {flushed.message}")
    return answers


async def _one(engine: Any, progress: Progress, prompt: Any, sampling: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    rid, abort_at = plan["rid"], plan.get("abort_at")
    if "after" in plan:
        await progress.at(*plan["after"])
    arguments: dict[str, Any] = {"prompt" if isinstance(prompt, str) else "input_ids": prompt}
    if "images" in plan:
        arguments["image_data"] = plan["images"]
    if "top_logprobs" in plan:
        arguments |= {"return_logprob": True, "top_logprobs_num": plan["top_logprobs"]}
    stream = await engine.async_generate(sampling_params=sampling, rid=rid, stream=True, **arguments)
    aborting = asyncio.create_task(_abort(engine, progress, rid, abort_at)) if abort_at is not None else None
    output: dict[str, Any] = {}
    async for output in stream:
        await progress.report(rid, output["meta_info"]["completion_tokens"])
    await progress.report(rid, output["meta_info"]["completion_tokens"], ended=True)
    if aborting:
        await aborting
    meta = output["meta_info"]
    return {
        "token_ids": output["output_ids"],
        "text": output["text"],
        "logprobs": [entry[0] for entry in meta.get("output_token_logprobs") or []],
        "meta_info": {key: value for key, value in meta.items() if "input" not in key},
    }


async def _abort(engine: Any, progress: Progress, rid: str, tokens: int) -> None:
    if tokens == 0:
        while rid not in engine.tokenizer_manager.rid_to_state:
            await asyncio.sleep(0)
    else:
        await progress.at(rid, tokens)
    engine.tokenizer_manager.abort_request(rid)


def stops(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """Each prompt as it is, then again with stop strings and stop tokens taken from its own answer, at each of ``extra["cuts"]`` (token
    numbers in the answer): one string, two of which the later is named first, one token, a token and a later string.
    ``meta_info["stop"]`` holds what was asked for."""
    answers: list[dict[str, Any]] = []
    for number, (prompt, sampling) in enumerate(zip(group["prompts"], group["sampling"], strict=True)):
        [whole] = play(engine, {"prompts": [prompt], "sampling": [sampling], "extra": {"requests": [{"rid": f"whole-{number}"}]}})
        ids = whole["token_ids"]
        asked: list[dict[str, Any]] = []
        for cut in group["extra"]["cuts"]:
            first, last = (engine.tokenizer_manager.tokenizer.decode(ids[start : start + 2]) for start in (cut, cut + 1))
            asked += [
                {"stop": [first]},
                {"stop": [last, first]},
                {"stop_token_ids": [ids[cut]]},
                {"stop": [last], "stop_token_ids": [ids[cut]]},
            ]
        requests = [{"rid": f"stop{number}-{each}"} for each in range(len(asked))]
        cut_short = {
            "prompts": [prompt] * len(asked),
            "sampling": [{**sampling, "ignore_eos": False, **stop} for stop in asked],
            "extra": {"requests": requests},
        }
        found = play(engine, cut_short)
        for answer, stop in zip(found, asked, strict=True):
            answer["meta_info"]["stop"] = stop
        answers += [whole, *found]
    return answers


def draw(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """Many answers to each prompt, under rids ``<extra["rids"][prompt]>-<number>``, ``extra["times"]`` of them; one output for each prompt:
    all answers in ``meta_info["draws"]``, the sum of their verify steps beside them."""
    answers = []
    for name, prompt, sampling in zip(group["extra"]["rids"], group["prompts"], group["sampling"], strict=True):
        times = group["extra"]["times"]
        rids = [f"{name}-{number}" for number in range(times)]
        outputs = engine.generate(input_ids=[prompt] * times, sampling_params=sampling, rid=rids)
        steps = sum(output["meta_info"].get("spec_verify_ct", 0) for output in outputs)
        meta = {"draws": [output["output_ids"] for output in outputs], "verify_steps": steps}
        answers.append({"token_ids": [], "text": "", "logprobs": [], "meta_info": meta})
    return answers
