"""SGLang's four endpoints in front of a scripted engine: what a client of each gets of an answer, whole or streamed.

The serving classes, their parsers, the tokenizer and the chat template are real; only what the model writes is given.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tool_answers import TOOLS  # type: ignore[import-not-found]

from sglang_gemma4 import tiny

FOLDER = Path(tiny.__file__).parent / "checkpoints" / "tiny-e2b"
ENDPOINTS = ("chat", "responses", "messages", "completions")


@dataclass
class Seen:
    """What a client has put together: calls as [name, arguments as text]."""

    thought: str = ""
    text: str = ""
    calls: list[list[str]] = field(default_factory=list)
    finish: str = ""


class ScriptedEngine:
    """Stands for the tokenizer manager: answers ``script``, in pieces of ``size`` characters where it is streamed (0: one piece).

    Attributes:
        finish: the finish reason's type.
        matched: what ended an answer whose finish is "stop", a token's id or a stop string.
        error: raised in place of an answer, where it is not None.
        request: the last request that came.
    """

    def __init__(self) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(FOLDER)
        self.script, self.size, self.finish = "", 0, "stop"
        self.matched: Any = 106
        self.error: Exception | None = None
        self.request: Any = None
        self.served_model_name, self.model_path = "tiny", str(FOLDER)
        self.server_args, self.num_reserved_tokens, self.processor = None, 0, None
        self.allow_auto_truncate = True  # prompts are not measured
        self.request_logger = SimpleNamespace(log_requests=False, log_requests_level=0)
        self.model_config = SimpleNamespace(
            hf_config=SimpleNamespace(model_type="gemma4", architectures=["Gemma4ForConditionalGeneration"]),
            is_multimodal=True, context_len=4096, vocab_size=len(self.tokenizer), get_default_sampling_params=dict,
        )  # fmt: skip

    def config_value(self, name: str) -> Any:
        return {"tool_call_parser": "gemma4", "reasoning_parser": "gemma4"}.get(name)

    def create_abort_task(self, _request: Any) -> None:
        return None

    async def generate_request(self, request: Any, _raw: Any = None) -> AsyncIterator[dict[str, Any]]:
        from sglang.srt.sampling.sampling_params import SamplingParams

        self.request = request
        parameters = SamplingParams(**request.sampling_params)  # as where a prompt is tokenised
        parameters.normalize(self.tokenizer)
        parameters.verify(self.model_config.vocab_size)
        if self.error is not None:
            raise self.error
        size = self.size if request.stream and self.size else len(self.script) or 1
        ends = [*range(size, len(self.script), size), len(self.script)]
        for end in ends:
            finish = {"type": self.finish, **({"matched": self.matched} if self.finish == "stop" else {"length": 9})}
            meta = {
                "id": "a", "finish_reason": finish if end == ends[-1] else None, "prompt_tokens": 9, "completion_tokens": end,
                "cached_tokens": 0, "reasoning_tokens": 0, "weight_version": "default",
                "weight_versions": [{"version": "default", "start": 0, "end": end}],
            }  # fmt: skip
            yield {"text": self.script[:end], "index": 0, "output_ids": [1] * end, "meta_info": meta}


class Endpoints:
    """The four endpoints of one server."""

    def __init__(self, template: str | None = None) -> None:
        from sglang.srt import runtime_context
        from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
        from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
        from sglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion
        from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses
        from sglang.srt.parser.template_manager import TemplateManager
        from sglang.srt.server_args import ServerArgs

        parsers = {"reasoning_parser": "gemma4", "tool_call_parser": "gemma4"}
        runtime_context.publish(ServerArgs(model_path=str(FOLDER), device="cpu", **parsers), role="tokenizer")
        self.engine = ScriptedEngine()
        if template is not None:
            self.engine.tokenizer.chat_template = template
        manager: Any = self.engine
        templates = TemplateManager()
        templates.initialize_templates(manager, str(FOLDER))
        self.chat = OpenAIServingChat(manager, templates)
        self.responses = OpenAIServingResponses(manager, templates)
        self.messages = AnthropicServing(self.chat)
        self.completions = OpenAIServingCompletion(manager, templates)

    def ask(self, endpoint: str, script: str, size: int | None = None, *, finish: str = "stop", **asked: Any) -> Seen:
        """The answer ``script`` at ``endpoint``, streamed in pieces of ``size`` characters or (None) whole.

        Keyword arguments:
            thinking: the request asks for thinking.
            messages: the conversation, in the form of chat completions.
            tools: whether tools are declared, or for chat completions which.
        """
        self.engine.script, self.engine.size, self.engine.finish = script, size or 0, finish
        seen: Seen = asyncio.run(getattr(self, f"_{endpoint}")(size is not None, **asked))
        return seen

    async def _chat(self, stream: bool, thinking: bool = False, messages: Any = None, tools: Any = True, **more: Any) -> Seen:
        from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

        declared = chat_tools() if tools is True else tools or None
        request = ChatCompletionRequest(
            model="tiny", messages=messages or [{"role": "user", "content": "?"}], stream=stream, tools=declared,
            chat_template_kwargs={"enable_thinking": thinking}, **more,
        )  # fmt: skip
        answer = await self.chat.handle_request(request, None)  # type: ignore[arg-type]
        seen = Seen()
        if not stream:
            (choice,) = answer.choices
            called = [[call.function.name, call.function.arguments] for call in choice.message.tool_calls or []]
            return Seen(choice.message.reasoning_content or "", choice.message.content or "", called, choice.finish_reason)
        calls: dict[int, list[str]] = {}
        async for event in _events(answer.body_iterator):
            for choice in event["choices"]:
                delta = choice["delta"]
                seen.thought += delta.get("reasoning_content") or ""
                seen.text += delta.get("content") or ""
                seen.finish = choice["finish_reason"] or seen.finish
                for call in delta.get("tool_calls") or []:
                    _add(calls.setdefault(call["index"], ["", ""]), call["function"].get("name"), call["function"].get("arguments"))
        seen.calls = [calls[index] for index in sorted(calls)]
        return seen

    async def _responses(self, stream: bool, thinking: bool = False, messages: Any = None, tools: bool = True, **more: Any) -> Seen:
        from sglang.srt.entrypoints.openai.protocol import ResponsesRequest

        request = ResponsesRequest(
            model="tiny", input=_items(messages), stream=stream, tools=_response_tools() if tools else [], store=False,
            chat_template_kwargs={"enable_thinking": thinking}, **more,
        )  # fmt: skip
        answer = await self.responses.create_responses(request, None)
        if not stream:
            return _of_items(answer.model_dump()["output"], answer.status)
        seen, calls, last = Seen(), dict[int, list[str]](), dict[str, Any]()
        async for event in _events(answer):
            kind, index = event["type"], event.get("output_index", -1)
            if kind == "response.output_item.added" and event["item"]["type"] == "function_call":
                calls[index] = [event["item"]["name"], ""]
            elif kind == "response.function_call_arguments.delta":
                calls[index][1] += event["delta"]
            elif kind == "response.reasoning_text.delta":
                seen.thought += event["delta"]
            elif kind == "response.output_text.delta":
                seen.text += event["delta"]
            last = event
        seen.calls = [calls[index] for index in sorted(calls)]
        snapshot = _of_items(last["response"]["output"], last["response"]["status"])
        seen.finish = snapshot.finish
        assert snapshot == seen, f"deltas {seen}, snapshot {snapshot}"
        return seen

    async def _messages(self, stream: bool, thinking: bool = False, messages: Any = None, tools: bool = True, **more: Any) -> Seen:
        from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest

        asked = {"thinking": {"type": "enabled", "budget_tokens": 1024} if thinking else {"type": "disabled"}, **more}
        if tools:
            asked["tools"] = [{"name": name, "input_schema": schema} for name, schema in TOOLS.items()]
        request = AnthropicMessagesRequest(model="tiny", max_tokens=2000, messages=_blocks(messages), stream=stream, **asked)
        answer = await self.messages.handle_messages(request, None)  # type: ignore[arg-type]
        if not stream:
            whole, seen = json.loads(answer.body), Seen()
            for block in whole["content"]:
                _add_block(seen, block)
            seen.finish = whole["stop_reason"]
            return seen
        seen, of = Seen(), ""
        async for event in _events(answer.body_iterator):
            if event["type"] == "content_block_start":
                _add_block(seen, {**event["content_block"], "input": None})
                of = event["content_block"]["type"]
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                seen.thought += delta.get("thinking", "")
                seen.text += delta.get("text", "")
                if "partial_json" in delta:
                    assert of == "tool_use"
                    seen.calls[-1][1] += delta["partial_json"]
            elif event["type"] == "message_delta":
                seen.finish = event["delta"]["stop_reason"]
        return seen

    async def _completions(self, stream: bool, prompt: str = "?", **_more: Any) -> Seen:
        """Raw text: nothing is parsed."""
        from sglang.srt.entrypoints.openai.protocol import CompletionRequest

        request = CompletionRequest(model="tiny", prompt=prompt, stream=stream)
        answer = await self.completions.handle_request(request, None)  # type: ignore[arg-type]
        if not stream:
            return Seen(text=answer.choices[0].text, finish=answer.choices[0].finish_reason)
        seen = Seen()
        async for event in _events(answer.body_iterator):
            for choice in event["choices"]:
                seen.text += choice["text"]
                seen.finish = choice["finish_reason"] or seen.finish
        return seen


async def _events(lines: Any) -> AsyncIterator[dict[str, Any]]:
    async for line in lines:
        for data in (part[len("data: ") :] for part in str(line).split("\n") if part.startswith("data: ")):
            if data != "[DONE]":
                event = json.loads(data)
                assert "error" not in event or not event["error"], event
                yield event


def _add(call: list[str], name: str | None, arguments: str | None) -> None:
    call[0] += name or ""
    call[1] += arguments or ""


def _add_block(seen: Seen, block: dict[str, Any]) -> None:
    if block["type"] == "tool_use":
        seen.calls.append([block["name"], "" if block["input"] is None else json.dumps(block["input"], ensure_ascii=False)])
    seen.thought += block.get("thinking", "")
    seen.text += block.get("text", "")


def _of_items(items: list[dict[str, Any]], status: str) -> Seen:
    seen = Seen(finish=status)
    for item in items:
        if item["type"] == "function_call":
            seen.calls.append([item["name"], item["arguments"]])
            seen.finish = "incomplete" if item["status"] == "incomplete" else seen.finish
        elif item["type"] == "reasoning":
            seen.thought += "".join(part["text"] for part in item["content"])
        else:
            seen.text += "".join(part["text"] for part in item["content"])
    return seen


def chat_tools() -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in TOOLS.items()]


def _response_tools() -> list[dict[str, Any]]:
    return [{"type": "function", "name": name, "parameters": schema} for name, schema in TOOLS.items()]


def _items(messages: Any) -> Any:
    """A conversation of chat completions as the input of /v1/responses."""
    items: list[dict[str, Any]] = []
    for message in messages or [{"role": "user", "content": "?"}]:
        for call in message.get("tool_calls") or []:
            items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
        if message["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]})
        elif message.get("content"):
            items.append({"role": message["role"], "content": message["content"]})
    return items


def _blocks(messages: Any) -> list[dict[str, Any]]:
    """A conversation of chat completions as /v1/messages takes it."""
    found: list[dict[str, Any]] = []
    for message in messages or [{"role": "user", "content": "?"}]:
        if message["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            found.append({"role": "user", "content": [result]})
        elif message.get("tool_calls"):
            used = [
                {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": json.loads(call["function"]["arguments"])}
                for call in message["tool_calls"]
            ]
            found.append({"role": "assistant", "content": used})
        else:
            found.append({"role": message["role"], "content": message["content"]})
    return found
