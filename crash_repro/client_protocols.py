"""What strict clients of OpenAI and Anthropic cannot read or are not told, and limits that are not kept. Needs no GPU."""

import json
import sys
from collections.abc import Callable
from typing import Any

import case  # type: ignore[import-not-found]
import ollama_answers  # type: ignore[import-not-found]
import scripted_http  # type: ignore[import-not-found]
import tool_answers  # type: ignore[import-not-found]

S = tool_answers.S
SAID = [{"role": "user", "content": "?"}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": SAID}
RESPONSE: dict[str, Any] = {"model": "tiny", "input": "?", "store": False}
MESSAGE: dict[str, Any] = {"model": "tiny", "messages": SAID, "max_tokens": 99}
THINKS: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
THOUGHT = "<|channel>thought\nHm.\n<channel|>Rome."
CALL = f"<|tool_call>call:weather{{city:{S}Rome{S}}}<tool_call|>"
TOOL = {"name": "weather", "parameters": tool_answers.TOOLS["weather"]}
FORMAT = {"name": "a", "schema": ollama_answers.SCHEMA}
TOO_LONG = ValueError("the prompt is too long")


def metadata(server: Any) -> bool:
    """Whether all of an answer's metadata are texts, from which the versions can be read."""
    server.write("Rome.")
    found = server.ask("/v1/chat/completions", **CHAT)[1]["metadata"]
    return all(isinstance(value, str) for value in found.values()) and json.loads(found["weight_versions"])[0]["version"] == "default"


def limits(server: Any) -> Any:
    """The most tokens of an answer that asks for 16, 2 and 1, and the status of one that asks for 0."""
    server.write("Rome.")
    found: list[Any] = []
    for asked in (16, 2, 1):
        status, _ = server.ask("/v1/responses", **RESPONSE, max_output_tokens=asked)
        found.append(server.engine.request.sampling_params["max_new_tokens"] if status == 200 else status)
    return [*found, server.ask("/v1/responses", **RESPONSE, max_output_tokens=0)[0]]


def forced(server: Any) -> Any:
    """The call of an answer that has to call and is given a schema too, at each endpoint."""
    server.write(CALL)
    text = {"format": {"type": "json_schema", **FORMAT}}
    choice = {"type": "function", "name": "weather"}
    answered, response = server.ask("/v1/responses", **RESPONSE, tools=[{"type": "function", **TOOL}], tool_choice=choice, text=text)
    schema = {"type": "json_schema", "json_schema": FORMAT}
    tools = [{"type": "function", "function": TOOL}]
    chatted, chat = server.ask("/v1/chat/completions", **CHAT, tools=tools, tool_choice="required", response_format=schema)
    return [
        [item["arguments"] for item in response["output"]] if answered == 200 else answered,
        [call["function"]["arguments"] for call in chat["choices"][0]["message"]["tool_calls"]] if chatted == 200 else chatted,
    ]


def thread(server: Any) -> Any:
    """The statuses of a thread's first and next turn, and whether Anthropic's client knows that it has to send all of it."""
    server.write("Rome.")
    found = [
        server.ask("/v1/messages", **MESSAGE, thread=one) for one in ({"type": "create"}, {"type": "continue", "previous_message_id": "a"})
    ]
    return [[status, answer.get("error", {}).get("details", {}).get("error_code")] for status, answer in found]


def stopped(server: Any) -> Any:
    """Why an answer ended at a stop sequence, whole and streamed, and at its own end."""
    server.write("Rome", matched="END")
    whole = server.ask("/v1/messages", **MESSAGE, stop_sequences=["END"])[1]
    server.write("Rome", size=2, matched="END")
    delta = next(event for event in server.lines("/v1/messages", **MESSAGE, stop_sequences=["END"]) if event["type"] == "message_delta")
    server.write("Rome")
    plain = server.ask("/v1/messages", **MESSAGE, stop_sequences=["END"])[1]
    return [[one.get("stop_reason"), one.get("stop_sequence")] for one in (whole, delta["delta"], plain)]


def signed(server: Any) -> bool:
    """Whether a thought has the same signature, whole and streamed."""
    server.write(THOUGHT)
    whole = server.ask("/v1/messages", **MESSAGE, **THINKS)[1]["content"][0]
    server.write(THOUGHT, size=3)
    events = server.lines("/v1/messages", **MESSAGE, **THINKS)
    deltas = [event["delta"].get("signature", "") for event in events if event["type"] == "content_block_delta"]
    starts = [event["content_block"].get("signature") for event in events if event["type"] == "content_block_start"]
    return bool(whole.get("signature")) and "".join(deltas) == whole["signature"] and starts == ["", None]


def errors(server: Any) -> Any:
    """Status and type of a request that the server refuses, whole and streamed, and of a body of the wrong form."""
    server.write("Rome", error=TOO_LONG)
    found = [server.ask("/v1/messages", **MESSAGE), server.post("/v1/messages", {**MESSAGE, "stream": True})]
    found.append(server.ask("/v1/messages", **{**MESSAGE, "max_tokens": 0}))
    return [[status, _error(answer)] for status, answer in found]


def refused(server: Any) -> Any:
    """Status and message of a response that the server refuses, whole and streamed, and how a stream that it serves begins."""
    server.write("Rome", error=TOO_LONG)
    found: list[Any] = [server.ask("/v1/responses", **RESPONSE), server.post("/v1/responses", {**RESPONSE, "stream": True})]
    server.write("Rome", size=2)
    begin = [event["type"] for event in server.lines("/v1/responses", **RESPONSE)][:2]
    said = [json.loads(answer) if isinstance(answer, str) and answer.startswith("{") else answer for _, answer in found]
    words = [one["error"]["message"] if isinstance(one, dict) else "" for one in said]
    return [*[[status, word] for (status, _), word in zip(found, words, strict=True)], begin]


def _error(answer: Any) -> Any:
    found = answer if isinstance(answer, dict) else json.loads(answer) if answer.startswith("{") else {}
    return [found.get("type"), found.get("error", {}).get("type")]


INVALID = [400, ["error", "invalid_request_error"]]
CASES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "metadata": (metadata, True),
    "max_output_tokens": (limits, [16, 2, 1, 400]),
    "a schema beside a call that must come": (forced, [['{"city": "Rome"}']] * 2),
    "a thread": (thread, [[400, "thread_unsupported_request"]] * 2),
    "a stop sequence": (stopped, [["stop_sequence", "END"]] * 2 + [["end_turn", None]]),
    "a thought's signature": (signed, True),
    "errors": (errors, [INVALID] * 3),
    "a refused response": (refused, [[400, str(TOO_LONG)]] * 2 + [["response.created", "response.in_progress"]]),
}


def main() -> int:
    """Every case; what a client sees that is not as expected."""
    tool_answers.load()
    server = scripted_http.Server()
    seen = {name: ollama_answers.outcome(ask, server) for name, (ask, _) in CASES.items()}
    return int(case.verdict({name: wanted for name, (_, wanted) in CASES.items()}, seen))


if __name__ == "__main__":
    sys.exit(main())
