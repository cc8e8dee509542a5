"""Sessions that take turns at an engine: ``client="session_client:send"``.

``prompts`` are the first turns. ``extra["added"]`` holds for each further turn what every session's user adds, and ``extra["together"]``
how many sessions are asked at once. A further turn's prompt is all that was said before it. The answers are in the order of turns, then
sessions; ``meta_info["asked"]`` is the prompt, and where metrics are on, the last one has ``meta_info["counters"]`` (``metrics_client``).
"""

import asyncio
import os
from typing import Any

from sglang.srt.managers.io_struct import CloseSessionReqInput, OpenSessionReqInput

from tests.harness import nursery
from tests.harness.engine_clients import metrics_client


def send(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """Every session's first turn, then every session's second, and so on."""
    prompts, together = list(group["prompts"]), group["extra"]["together"]
    found: list[dict[str, Any]] = []
    for added in [None, *group["extra"]["added"]]:
        if added:
            last = found[-len(prompts) :]
            prompts = [answer["meta_info"]["asked"] + answer["token_ids"] + new for answer, new in zip(last, added, strict=True)]
        for first in range(0, len(prompts), together):
            asked = prompts[first : first + together]
            answers = nursery.send(engine, {**group, "prompts": asked})
            for answer, prompt in zip(answers, asked, strict=True):
                answer["meta_info"]["asked"] = prompt
            found += answers
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        found[-1]["meta_info"]["counters"] = metrics_client.counters()
    return found


def converse(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """SGLang's own sessions, ``/open_session`` and ``session_params``: ``client="session_client:converse"``.

    ``prompts`` are the first turns. ``extra["streaming"]`` says which kind of session, ``extra["turns"]`` holds for each further turn
    ``say``, what every session's user adds, ``sampling``, one mapping for each session, and perhaps ``params``, more ``session_params``.
    All turns of one number run at once. In a sampling, ``abort_at`` says at how many tokens a turn is aborted, and ``meanwhile`` how many
    more turns the session is asked for then, which must be refused. The answers are in the order of turns, then sessions;
    ``meta_info["asked"]`` is the prompt that one request without a session would have.
    """
    answers: list[dict[str, Any]] = engine.loop.run_until_complete(_converse(engine, group))
    return answers


async def _converse(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    extra, manager = group["extra"], engine.tokenizer_manager
    talks = [Talk(engine, f"session-{number}") for number in range(len(group["prompts"]))]
    for talk in talks:
        opening = OpenSessionReqInput(capacity_of_str_len=100_000, session_id=talk.name, streaming=extra["streaming"])
        assert await manager.open_session(opening, None) == talk.name
    found = []
    for turn in [{"say": group["prompts"], "sampling": group["sampling"]}, *extra["turns"]]:
        asked = zip(talks, turn["say"], turn["sampling"], strict=True)
        found += await asyncio.gather(*(talk.take(say, sampling, turn.get("params", {})) for talk, say, sampling in asked))
    for talk in talks:
        await manager.close_session(CloseSessionReqInput(session_id=talk.name), None)
    await manager.get_internal_state()  # the scheduler was idle and has checked its pools
    flushed = await manager.flush_cache(timeout_s=30.0)
    if not flushed.success:
        raise RuntimeError(f"the scheduler is not idle after the last session: {flushed.message}")
    return found


class Talk:
    """One session, and what its history should be."""

    def __init__(self, engine: Any, name: str) -> None:
        self.engine, self.name = engine, name
        self.turns = 0
        self.before: list[int] = []
        self.said: list[int] = []
        self.last: str | None = None

    async def take(self, say: list[int], sampling: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        """Ask for a turn."""
        sampling = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True, **sampling}
        abort_at, meanwhile = sampling.pop("abort_at", None), sampling.pop("meanwhile", 0)
        asked = (self.before + ([] if params.get("drop_previous_output") else self.said))[: params.get("offset")] + say
        self.turns += 1
        rid, output = f"{self.name}.{self.turns}", {}
        async for output in await self._send(rid, say, sampling, params):
            if abort_at is not None and output["meta_info"]["completion_tokens"] >= abort_at:
                self.engine.tokenizer_manager.abort_request(rid)
            await asyncio.gather(*(self._refused(f"{rid}.{number}", say) for number in range(meanwhile)))
            meanwhile = 0
        if output["meta_info"]["finish_reason"]["type"] != "abort":
            self.before, self.said, self.last = asked, output["output_ids"], rid
        meta = {key: value for key, value in output["meta_info"].items() if "logprobs" not in key}
        return {"token_ids": output["output_ids"], "text": output["text"], "logprobs": [], "meta_info": {**meta, "asked": asked}}

    async def _send(self, rid: str, say: list[int], sampling: dict[str, Any], params: dict[str, Any]) -> Any:
        session = {"id": self.name, "rid": self.last, **params}
        return await self.engine.async_generate(input_ids=say, sampling_params=sampling, rid=rid, session_params=session, stream=True)

    async def _refused(self, rid: str, say: list[int]) -> None:
        try:
            async for output in await self._send(rid, say, {"max_new_tokens": 4}, {}):
                reason = output["meta_info"]["finish_reason"]
        except ValueError as error:
            reason = {"message": str(error)}
        assert "already has an active request" in reason.get("message", ""), reason
