"""Ollama's endpoints on SGLang's real HTTP application, with a scripted engine: served as Ollama serves it, or refused by name."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import ollama_answers  # type: ignore[import-not-found]
import pytest
import scripted_http  # type: ignore[import-not-found]
import tool_answers  # type: ignore[import-not-found]
from fastapi import Depends, FastAPI

from sglang_gemma4.patches import load
from sglang_gemma4.serving.ollama import answers, messages, options, requests, routes
from tests.harness import applied
from tests.harness.child import InChild

PATCHES = [load(name) for name in ("answer_parser", "tool_grammar", "ollama_api")]
CONTEXT = 4096
S = tool_answers.S


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    applied.import_entry_points(applied.APPLICATION, PATCHES)


def server(switch: str = "1") -> Any:
    """The application, with the package unless ``switch`` is "0"."""
    applied.apply(PATCHES, switch)
    return scripted_http.Server()


def test_what_ollama_serves_is_served(in_child: InChild) -> None:
    def child() -> Any:
        made = server()
        return {name: [ollama_answers.outcome(ask, made), wanted] for name, (ask, wanted) in ollama_answers.CASES.items()}

    found = in_child(child)
    assert {name: seen for name, (seen, _) in found.items()} == {name: wanted for name, (_, wanted) in found.items()}


def test_stock_does_not(in_child: InChild) -> None:
    def child() -> int:
        made = server("0")
        return sum(ollama_answers.outcome(ask, made) != wanted for ask, wanted in ollama_answers.CASES.values())

    assert in_child(child) > 10, "SGLang has repaired some of these: see whether the patch can go"


def test_a_streamed_answer_is_the_whole_one_however_it_is_cut(in_child: InChild) -> None:
    wrote = f"<|channel>thought\nHm.\n<channel|>Rome.<|tool_call>call:weather{{city:{S}Rome{S}}}<tool_call|>"

    def child() -> Any:
        made, found = server(), []
        asked = {**ollama_answers.ASKED, "tools": ollama_answers.TOOLS, "think": True, "options": {"num_predict": 90}}
        for size in (1, 4, 7, 1000):
            made.write(wrote, size=size)
            lines = made.lines("/api/chat", **asked)
            parts = [line["message"] for line in lines]
            calls = [call["function"] for part in parts for call in part.get("tool_calls", [])]
            text = ["".join(part.get(name, "") for part in parts) for name in ("thinking", "content")]
            assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
            durations = [lines[-1][name] for name in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")]
            assert all(isinstance(one, int) for one in durations)
            found.append([*text, calls, lines[-1]["done_reason"], lines[-1]["eval_count"]])
        made.write(wrote)
        whole = made.ask("/api/chat", **asked, stream=False)[1]
        message = whole["message"]
        calls = [call["function"] for call in message["tool_calls"]]
        return [*found, [message["thinking"], message["content"], calls, whole["done_reason"], whole["eval_count"]]]

    call = {"index": 0, "name": "weather", "arguments": {"city": "Rome"}}
    assert in_child(child) == [["Hm.", "Rome.", [call], "stop", len(wrote)]] * 5


def test_a_call_that_the_end_cut_and_errors_of_a_stream(in_child: InChild) -> None:
    def child() -> Any:
        made = server()
        made.write(f"<|tool_call>call:weather{{city:{S}Ro", size=3, finish="length")
        cut = made.lines("/api/chat", **ollama_answers.ASKED, tools=ollama_answers.TOOLS)
        made.write("Rome", error=ValueError("the prompt is too long"))
        refused = made.post("/api/chat", {**ollama_answers.ASKED, "stream": True})
        called = cut[-2]["message"]["tool_calls"][0]["function"]["arguments"]
        return [called, cut[-1]["done_reason"], [refused[0], json.loads(refused[1])]]

    assert in_child(child) == [{"city": "Ro"}, "length", [400, {"error": "the prompt is too long"}]]


def test_generate(in_child: InChild) -> None:
    def child() -> Any:
        made = server()
        made.write("Rome.")
        asked = {"model": "tiny", "prompt": "Where?", "stream": False}
        plain = made.ask("/api/generate", **asked, system="Be brief.")[1]["response"]
        sent = made.engine.request
        prompt = sent.text or made.engine.tokenizer.decode(sent.input_ids)
        made.ask("/api/generate", **asked, raw=True, format="json", options={"top_k": 0})
        sent = made.engine.request
        raw = [sent.text, sent.sampling_params["max_new_tokens"], sent.sampling_params["top_k"], sent.sampling_params["json_schema"]]
        made.ask("/api/generate", model="tiny", prompt="", images=[ollama_answers.PIXEL], stream=False)
        pictures = len(made.engine.request.image_data)
        loaded = made.ask("/api/generate", model="tiny")[1]
        return [plain, prompt, raw, pictures, loaded["done_reason"], loaded["response"]]

    plain, prompt, raw, pictures, *loaded = in_child(child)
    assert plain == "Rome."
    assert "<|turn>system\nBe brief.<turn|>" in prompt
    assert "<|turn>user\nWhere?<turn|>" in prompt
    assert raw == ["Where?", None, -1, '{"type": "object"}']
    assert pictures == 1
    assert loaded == ["load", ""]


def test_the_model_is_described_as_it_is(in_child: InChild) -> None:
    def child() -> Any:
        made = server()
        shown = made.ask("/api/show", model="tiny")[1]
        tags = json.loads(made.post("/api/tags", None, "GET")[1])["models"]
        return (
            shown["capabilities"],
            shown["model_info"]["gemma4.context_length"],
            [one["name"] for one in tags],
            made.post("/api/show", "["),
        )

    capabilities, context, names, malformed = in_child(child)
    assert capabilities == ["completion", "vision", "tools", "thinking"]
    assert (context, names) == (CONTEXT, ["tiny"])
    assert malformed[0] == 400
    assert "error" in json.loads(malformed[1])


async def streamed(chunk: dict[str, Any]) -> list[bytes]:
    """The lines of a streamed answer of one chunk."""

    async def chunks() -> AsyncIterator[str]:
        yield f"data: {json.dumps(chunk)}\n\n"

    return [line async for line in answers.streamed(chunks(), "tiny", answers.of_chat, 0)]


def test_lone_surrogates_are_sent_as_json_has_them() -> None:
    said = {"content": "\ud800\\ é"}
    choice = {"message": said, "delta": said, "finish_reason": "stop"}
    lines = asyncio.run(streamed({"choices": [choice]}))
    whole = routes._json(answers.whole({"choices": [choice]}, "tiny", answers.of_chat, 0)).body
    for line in (lines[0], bytes(whole)):
        assert json.loads(line)["message"]["content"] == said["content"]
        assert "é".encode() in line
    assert json.loads(lines[-1])["done"] is True


class Adapters:
    """A tokenizer manager with a registry of adapters."""

    served_model_name = "gemma4"
    lora_ref_cache = ("evicted",)

    def __init__(self, enable_lora: bool) -> None:
        self.enable_lora, self.lora_registry = enable_lora, self

    def get_all_adapters(self) -> tuple[str, ...]:
        return ("mine",)


@pytest.mark.parametrize(
    ("asked", "lora", "expected"),
    [
        ("gemma4:26b", True, "gemma4"),
        ("gemma4:26b", False, "gemma4"),
        ("gemma4:latest", True, "gemma4"),
        ("gemma4:mine", True, "gemma4:mine"),
        ("gemma4:mine:latest", True, "gemma4:mine"),
        ("gemma4:evicted", True, "gemma4:evicted"),
        ("gemma4:mine", False, "gemma4"),
        ("mine", True, "gemma4"),
    ],
)
def test_a_tag_is_an_adapter_where_the_server_knows_it(asked: str, lora: bool, expected: str) -> None:
    assert routes._model(asked, Adapters(lora)) == expected


def test_failures_of_the_server_are_not_the_clients(in_child: InChild) -> None:
    def child() -> Any:
        made = server()
        made.endpoints.chat.tool_call_parser = None
        found = [made.ask("/api/chat", **ollama_answers.ASKED, tools=ollama_answers.TOOLS, stream=False)]

        async def fail(*_: Any) -> None:
            raise ValueError("secret")

        made.endpoints.chat.handle_request = fail
        found.append(made.ask("/api/chat", **ollama_answers.ASKED, stream=False))
        return [*found, made.post("/api/chat", "[" * 100_000)[0]]

    refused, failed, nested = in_child(child)
    assert refused[0] == 400
    assert refused[1]["error"].startswith("tools: this server reads no calls")
    assert failed == [500, {"error": "Internal server error"}]
    assert nested == 400


def test_a_route_keeps_its_dependencies_and_its_access() -> None:
    app = FastAPI()

    async def ollama_tags() -> None:
        """Stand for SGLang's own."""

    setattr(ollama_tags, "_auth_level", "admin")  # noqa: B010
    app.get("/api/tags", dependencies=[Depends(lambda: None)])(ollama_tags)
    ours = routes.ENDPOINTS["ollama_tags"]
    try:
        routes.install(app)
        (route,) = (one for one in app.router.routes if getattr(one, "endpoint", None) is ours)
        assert (len(route.dependencies), getattr(ours, "_auth_level", None)) == (1, "admin")  # type: ignore[attr-defined]
    finally:
        vars(ours).pop("_auth_level", None)


def test_routes_of_other_models_are_sglangs(in_child: InChild) -> None:
    def child() -> Any:
        from sglang.srt.entrypoints.http_server import app
        from sglang.srt.entrypoints.ollama.serving import OllamaServing

        applied.apply(PATCHES)
        config = SimpleNamespace(architectures=["LlamaForCausalLM"])
        OllamaServing(SimpleNamespace(model_config=SimpleNamespace(hf_config=config)))
        found = [route.endpoint for route in app.router.routes if str(getattr(route, "path", "")).startswith("/api/")]
        return [endpoint.__module__ for endpoint in found]

    assert in_child(child) == ["sglang.srt.entrypoints.http_server"] * 4


OPTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "all that is served": (
        {"temperature": 0, "top_p": 0.9, "min_p": 0.1, "seed": 7, "stop": ["a"], "repeat_penalty": 1.1, "num_predict": 5, "top_k": 3},
        {"temperature": 0, "top_p": 0.9, "min_p": 0.1, "seed": 7, "stop": ["a"], "repetition_penalty": 1.1, "max_tokens": 5, "top_k": 3},
    ),
    "none of them": ({"seed": -1, "num_predict": -1, "top_k": 0, "mirostat": 0}, {"top_k": -1}),
    "to the end of the context": ({"num_predict": -2}, {}),
    "how it is loaded": ({"num_ctx": CONTEXT + 1, "num_gpu": 1, "num_thread": 2, "use_mmap": True, "num_keep": 4}, {}),
    "whole floats": ({"seed": 42.0, "num_predict": 100.0, "mirostat": 0.0, "num_ctx": 2048.0}, {"seed": 42, "max_tokens": 100}),
    "a span without a penalty": (
        {"repeat_last_n": 64, "repeat_penalty": 1.0, "presence_penalty": 0},
        {"repetition_penalty": 1, "presence_penalty": 0},
    ),
    "a penalty over the whole text": ({"repeat_last_n": -1, "repeat_penalty": 1.1}, {"repetition_penalty": 1.1}),
    "absent": ({"seed": None}, {}),
}
REFUSED: dict[str, dict[str, Any]] = {
    "num_predict": {"num_predict": 0},
    "num_ctx": {"num_ctx": 0},
    "options.num_predict: 4097 is above": {"num_predict": CONTEXT + 1},
    "mirostat": {"mirostat": 2},
    "temperature": {"temperature": "hot"},
    "top_p": {"top_p": 2},
    "seed": {"seed": 1.5},
    "temperatur": {"temperatur": 1},
    "repeat_last_n: 64 beside repeat_penalty": {"repeat_last_n": 64, "repeat_penalty": 1.1},
    "repeat_last_n": {"repeat_last_n": 64.5},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str) -> None:
    given, expected = OPTIONS[name]
    assert options.fields(given, CONTEXT) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        options.fields(REFUSED[name], CONTEXT)


@pytest.mark.parametrize("kept", [None, "", 300, -1, "5m", "1h30m", "-1", "0.5s"])
def test_a_model_that_stays_loaded(kept: Any) -> None:
    options.keep_alive(kept, loads=True)


@pytest.mark.parametrize("kept", [0, "0s"])
def test_a_prompt_is_answered_by_a_model_that_need_not_stay(kept: Any) -> None:
    said = [{"role": "user", "content": "?"}]
    assert requests.of_chat({"model": "tiny", "messages": said, "keep_alive": kept}, CONTEXT).path == "chat"
    assert requests.of_generate({"model": "tiny", "prompt": "?", "keep_alive": kept}, CONTEXT).path == "chat"
    for unload in (requests.of_chat, requests.of_generate):
        with pytest.raises(ValueError, match="keep_alive"):
            unload({"model": "tiny", "keep_alive": kept}, CONTEXT)


@pytest.mark.parametrize("name", ["truncate", "shift"])
def test_a_prompt_that_is_not_cut_may_be_asked_to_be(name: str) -> None:
    for value in (True, False, None):
        assert requests.of_generate({"model": "tiny", "prompt": "?", name: value}, CONTEXT).path == "chat"
    with pytest.raises(ValueError, match=name):
        requests.of_generate({"model": "tiny", "prompt": "?", name: "yes"}, CONTEXT)


@pytest.mark.parametrize("unloaded", [0, "0", "0s", "soon", True, [5]])
def test_a_model_is_not_unloaded(unloaded: Any) -> None:
    with pytest.raises(ValueError, match="keep_alive"):
        options.keep_alive(unloaded, loads=True)


BODIES: dict[str, dict[str, Any]] = {
    "suffix": {"suffix": "."},
    "template": {"template": "{{ .Prompt }}"},
    "context": {"context": [1]},
    "format": {"format": "yaml"},
    "think": {"think": "hard"},
    "system": {"raw": True, "system": "Be brief."},
    "images": {"images": ["file:///etc/passwd"]},
    "stream": {"stream": "yes"},
    "model": {"model": ""},
    "width": {"width": 64},
    "prompt": {"prompt": ["a"]},
    "top_logprobs": {"logprobs": True, "top_logprobs": 99},
    "top_logprobs: raw": {"raw": True, "top_logprobs": 2},
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        requests.of_generate({"model": "tiny", "prompt": "?", **BODIES[name]}, CONTEXT)


def called(name: str, **more: Any) -> dict[str, Any]:
    return {**more, "function": {"name": name, "arguments": {}}}


def test_results_answer_the_calls_of_their_tools() -> None:
    given = [
        {"role": "assistant", "tool_calls": [called("a"), called("b", id="mine"), called("a")], "thinking": "Hm."},
        {"role": "tool", "tool_name": "b", "content": "1"},
        {"role": "tool", "tool_name": "a", "content": "2"},
        {"role": "tool", "content": "3"},
        {"role": "tool", "tool_name": "c", "content": "4"},
    ]
    said = messages.of_chat(given)
    assert [call["id"] for call in said[0]["tool_calls"]] == ["call_1", "mine", "call_3"]
    assert [(one["tool_call_id"], one["name"]) for one in said[1:4]] == [("mine", "b"), ("call_1", "a"), ("call_3", "a")]
    assert said[4]["name"] == "c"
    assert said[0]["reasoning_content"] == "Hm."


def test_fields_that_ollama_does_not_know_are_ignored() -> None:
    assert messages.of_chat([{"role": "user", "content": "?", "id": "a", "timestamp": 1}]) == [{"role": "user", "content": "?"}]


def test_made_ids_are_not_those_of_the_client() -> None:
    given = [
        {"role": "assistant", "tool_calls": [called("a"), called("b", id="call_1")]},
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
        {"role": "tool", "tool_name": "a", "content": "2"},
    ]
    said = messages.of_chat(given)
    assert [call["id"] for call in said[0]["tool_calls"]] == ["call_2", "call_1"]
    assert [(one["tool_call_id"], one["name"]) for one in said[1:]] == [("call_1", "b"), ("call_2", "a")]


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("messages[0].role", {"role": "model", "content": ""}),
        ("messages[0].content", {"role": "user", "content": [{"type": "text", "text": "a"}]}),
        ("messages[0].images[0]", {"role": "user", "content": "", "images": ["https://a/b.png"]}),
        ("messages[0].tool_calls", {"role": "user", "tool_calls": [called("a")]}),
        ("arguments", {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]}),
    ],
)
def test_messages_that_are_refused_are_named(at: str, message: Any) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is looked at
        messages.of_chat([message])
    assert at in str(error.value)
