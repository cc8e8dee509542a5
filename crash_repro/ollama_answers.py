"""Ollama's endpoints lose the end of a stream, answer options with status 500 and ignore what they do not know. Needs no GPU."""

import sys
from collections.abc import Callable
from typing import Any

import case  # type: ignore[import-not-found]
import scripted_http  # type: ignore[import-not-found]
import tool_answers  # type: ignore[import-not-found]

SAID = "Rome is the capital."
S = tool_answers.S
ASKED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "?"}]}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": tool_answers.TOOLS["weather"]}}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def streamed(server: Any) -> Any:
    """The text that a client puts together, how the answer ends, and whether it counts tokens."""
    found = []
    for path, asked in (("/api/chat", ASKED), ("/api/generate", {"model": "tiny", "prompt": "?"})):
        server.write(SAID, size=4, finish="length")
        lines = server.lines(path, **asked)
        text = "".join(line["message"]["content"] if path == "/api/chat" else line["response"] for line in lines)
        found.append([text, lines[-1]["done_reason"], lines[-1].get("prompt_eval_count"), lines[-1].get("eval_count")])
    return found


def option(**options: Any) -> Callable[[Any], Any]:
    """The status of a chat with options."""

    def ask(server: Any) -> int:
        server.write(SAID)
        return int(server.post("/api/chat", {**ASKED, "stream": False, "options": options})[0])

    return ask


def calls(server: Any) -> Any:
    """The call that a client gets, whole and streamed."""
    wrote = f"<|tool_call>call:weather{{city:{S}Rome{S}}}<tool_call|>"
    server.write(wrote)
    _, whole = server.ask("/api/chat", **ASKED, tools=TOOLS, stream=False)
    server.write(wrote, size=4)
    lines = server.lines("/api/chat", **ASKED, tools=TOOLS)
    streamed = [call for line in lines for call in line.get("message", {}).get("tool_calls") or []]
    return [[call["function"]["arguments"] for call in found] for found in (whole["message"].get("tool_calls") or [], streamed)]


def thought(server: Any) -> Any:
    """The thought and the text of an answer."""
    server.write("<|channel>thought\nHm.\n<channel|>Rome.")
    message = server.ask("/api/chat", **ASKED, think=True, stream=False)[1]["message"]
    return [message.get("thinking"), message["content"]]


def shape(server: Any) -> bool:
    """Whether the answer is constrained by the schema that was given."""
    server.write('{"a": 1}')
    server.ask("/api/chat", **ASKED, format=SCHEMA, stream=False)
    return "json_schema" in server.engine.request.sampling_params


def pictures(server: Any) -> int:
    """How many pictures reach the engine."""
    server.write(SAID)
    server.ask("/api/chat", model="tiny", messages=[{"role": "user", "content": "?", "images": [PIXEL]}], stream=False)
    return len(server.engine.request.image_data or [])


def history(server: Any) -> int:
    """The status of a conversation with a call that has no content, and its result."""
    said = [*ASKED["messages"], CALL, {"role": "tool", "tool_name": "weather", "content": "Sun."}]
    server.write(SAID)
    return int(server.post("/api/chat", {"model": "tiny", "messages": said, "stream": False})[0])


def refused(body: Any) -> Callable[[Any], Any]:
    """The status of a request that asks for what is not there."""
    return lambda server: server.post("/api/chat", body if isinstance(body, str) else {**ASKED, "stream": False, **body})[0]


CASES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "streamed": (streamed, [[SAID, "length", 9, 20]] * 2),
    "seed": (option(seed=7), 200),
    "num_predict -1": (option(num_predict=-1), 200),
    "num_predict -2": (option(num_predict=-2), 200),
    "top_k 0": (option(top_k=0), 200),
    "an option that does not exist": (option(temperatur=0), 400),
    "num_predict above the context": (option(num_predict=1 << 20), 400),
    "calls": (calls, [[{"city": "Rome"}]] * 2),
    "a thought": (thought, ["Hm.", "Rome."]),
    "a schema": (shape, True),
    "a picture": (pictures, 1),
    "a call without content": (history, 200),
    "a field that does not exist": (refused({"formt": "json"}), 400),
    "unload": (refused({"messages": [], "keep_alive": 0}), 400),
    "no JSON": (refused("{"), 400),
}


def outcome(ask: Callable[[Any], Any], server: Any) -> Any:
    """What a case gives, or what its client fails with."""
    try:
        return ask(server)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main() -> int:
    """Every case; what a client sees that is not as expected."""
    tool_answers.load()
    server = scripted_http.Server()
    seen = {name: outcome(ask, server) for name, (ask, _) in CASES.items()}
    return int(case.verdict({name: wanted for name, (_, wanted) in CASES.items()}, seen))


if __name__ == "__main__":
    sys.exit(main())
