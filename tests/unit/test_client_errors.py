"""What a client wrote wrongly is a 400 that says why: bodies, tools, template arguments, and whatever reading them raises."""

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest

from sglang_gemma4.serving import chat_checks, prompt_length
from sglang_gemma4.serving.client_errors import STAGE, ClientError, Stage, cause, in_thread, reading, was_sent
from sglang_gemma4.serving.request_body import BodyError, check_shape, check_size
from tests.harness.child import InChild

MESSAGES = [{"role": "user", "content": "x"}]
CHAT = {"model": "m", "messages": MESSAGES}


def judge(body: Any) -> None:
    raw = json.dumps(body).encode()
    check_size(raw)
    check_shape(json.loads(raw))


def nested(levels: int) -> Any:
    return json.loads("[" * levels + "]" * levels)


@pytest.mark.parametrize(
    "body",
    [
        {**CHAT, "tools": [{"function": {"parameters": {"enum": list(range(20_000))}}}]},
        {**CHAT, "messages": MESSAGES * 4000},
        {"input_ids": [5] * 300_000},
        {"input_ids": [[5] * 10] * 4000},
        {"input_embeds": [[0.5] * 2816] * 400},
        {"text": ["a"] * 40_000},
        {"text": "[{,}]" * 400_000},
        {"a": nested(120)},
        None,
        5,
    ],
    ids=lambda body: json.dumps(body)[:40],
)
def test_bodies_that_are_read(body: Any) -> None:
    judge(body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": nested(200)}, "messages is nested deeper than 128"),
        (nested(500), "the body is nested deeper than 128"),
        ({"messages": MESSAGES * 5000}, "messages: an array of 5000 elements; at most 4096"),
        ({**CHAT, "messages": [{"role": "user", "content": [{"type": "text"}] * 5000}]}, "messages: an array of 5000 elements"),
        ({"prompt": [None] * 5000}, "prompt: an array of 5000 elements"),
        ({"prompt": [1.5] * 5000}, "prompt: an array of 5000 elements"),
        ({"text": ["a"] * 60_000}, "text: an array of 60000 elements; at most 50000"),
        ({"stop": [5] * 5000}, "stop: an array of 5000 elements"),
        ({"logit_bias": {str(n): 1 for n in range(5000)}}, "logit_bias: an object of 5000 members"),
        ({"input_ids": [5] * 1_100_000}, "the body has 1099999 values; at most 500000"),
        ({"a": {str(n): {} for n in range(110_000)}}, "the body has 110002 arrays and objects; at most 100000"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bodies_that_are_refused(body: Any, said: str) -> None:
    with pytest.raises(BodyError, match=said):
        judge(body)


def tools(parameters: Any) -> list[Any]:
    return [SimpleNamespace(function=SimpleNamespace(parameters=parameters))]


@pytest.mark.parametrize(
    ("parameters", "arguments", "said"),
    [
        (None, None, None),
        ({"type": "object"}, {"enable_thinking": True, "documents": []}, None),
        (True, None, "tools[0].function.parameters: True is bool; give a JSON schema that is an object"),
        ([], None, "tools[0].function.parameters: [] is list; give"),
        ({"properties": {"a": {"type": "text"}}}, None, "no JSON schema: #/properties/a/type: text is not one or several of object, array"),
        ({"properties": {"a": {"pattern": "("}}}, None, "#/properties/a/pattern: ( is no regular expression"),
        ({"allOf": {}}, None, "#/allOf: {} is not an array of schemas"),
        (None, "x", "chat_template_kwargs: x is str; give an object"),
        (None, {"messages": [], "tokenize": True}, "chat_template_kwargs: messages, tokenize cannot be given"),
    ],
)
def test_tools_and_template_arguments(parameters: Any, arguments: Any, said: str | None) -> None:
    found = chat_checks.reason_against(tools(parameters), arguments)
    assert found == said if said is None else said in str(found)


def test_a_text_that_no_context_holds() -> None:
    tokenizer = type("Tokenizer", (), {"get_vocab": lambda _: {"a": 0, "abc": 1}, "__hash__": lambda _: 5})()
    prompt_length.check(["x" * 150, "y" * 150], tokenizer, 100)
    with pytest.raises(
        ValueError, match="a prompt of 301 characters is longer than the context of 100 tokens in any case; send at most 300"
    ):
        prompt_length.check(["x" * 150, "y" * 151], tokenizer, 100)


@pytest.mark.parametrize(
    "error", [TypeError("a"), KeyError("a"), RecursionError(), OverflowError("a"), jinja2.TemplateError("a"), AssertionError()]
)
def test_what_reading_raises_is_the_clients(error: Exception) -> None:
    def raises() -> None:
        raise error

    with pytest.raises(ClientError, match="the request cannot be read: (it is nested too deeply|" + type(error).__name__ + ")"):
        reading(raises)


def test_other_errors_are_not() -> None:
    for error in (OSError("disk"), RuntimeError("x")):

        def raises(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            reading(raises)
    with pytest.raises(ValueError, match=r"^as it was$"):
        reading(lambda: (_ for _ in ()).throw(ValueError("as it was")))
    assert cause(ClientError("as it is")) == "as it is"


def test_a_coroutine_that_awaits_nothing_runs_in_a_thread_with_its_context() -> None:
    async def step(value: int) -> tuple[int, bool, bool]:
        return value, threading.current_thread() is threading.main_thread(), was_sent()

    async def awaits() -> None:
        await asyncio.sleep(1)

    async def main() -> None:
        assert was_sent(), "nothing is known of the request"
        STAGE.set(Stage())
        assert await in_thread(step(5)) == (5, False, False)
        with pytest.raises(RuntimeError, match=r"awaits something|no running event loop"):
            await in_thread(awaits())

    asyncio.run(main())


BODIES: list[tuple[str, bytes, int, str]] = [
    (
        "/v1/chat/completions",
        json.dumps({**CHAT, "response_format": "json"}).encode(),
        400,
        "AttributeError: 'str' object has no attribute",
    ),
    ("/v1/chat/completions", b"null", 400, ""),
    ("/v1/chat/completions", b'{"model":"m","messages":' + b"[" * 200 + b"]" * 200 + b"}", 400, "messages is nested deeper than 128"),
    ("/v1/chat/completions", json.dumps({"model": "m", "messages": [{"role": "x"}] * 4000}).encode(), 400, "8 validation errors"),
    ("/v1/completions", json.dumps({"model": "m", "prompt": [None] * 4000}).encode(), 400, "8 validation errors"),
    ("/v1/messages", b'{"model":"m","messages":' + b"[" * 200 + b"]" * 200 + b"}", 400, "invalid_request_error"),
    ("/generate", b'{"text":"\\ud800"}', 400, "JSON decode error"),
    ("/vertex_generate", b'{"instances":[{"text":"x"}],"parameters":{"x":1}}', 400, "unexpected keyword argument"),
    ("/load_lora_adapter", b"5", 400, ""),
    *(("/remove_external_corpus", body, 400, "AttributeError") for body in (b"null", b"5", b'"x"', b"[]")),
    *(("/add_external_corpus", body, 400, "") for body in (b"null", b"5", b'{"x": 1}')),
]
QUERIES = [
    ("/v1/loads?include=GARBAGE", 400, "Valid options"),
    ("/v1/loads?dp_rank=x", 400, "dp_rank"),
    ("/v1/loads", 500, ""),
    ("/x", 404, ""),
]


def test_over_http(in_child: InChild) -> None:
    """SGLang's own application, without an engine behind it: these never come so far."""

    def child() -> list[tuple[int, str]]:
        import sglang.srt.entrypoints.http_server as server
        from sglang.srt.managers.load_snapshot import LoadSnapshot
        from starlette.testclient import TestClient

        from sglang_gemma4 import patching
        from sglang_gemma4.patches import load
        from sglang_gemma4.serving.http_errors import install

        patching.apply([load("client_errors")], {"SGLANG_GEMMA4_STRICT": "1"})
        install(server.app)

        async def loads(include: Any, **_: Any) -> list[Any]:
            if include:
                return [LoadSnapshot()]
            raise KeyError("the server's own")

        client = TestClient(server.app, raise_server_exceptions=False)
        server.set_global_state(SimpleNamespace(tokenizer_manager=SimpleNamespace(get_loads=loads)))  # type: ignore[arg-type]
        headers = {"content-type": "application/json"}
        answers = [client.post(path, content=body, headers=headers) for path, body, _, _ in BODIES]
        answers += [client.get(path) for path, _, _ in QUERIES]
        return [(answer.status_code, answer.text) for answer in answers]

    expected = [(path, status, said) for path, _, status, said in BODIES] + QUERIES
    for (path, status, said), (seen, text) in zip(expected, in_child(child), strict=True):
        assert seen == status, (path, text)
        assert said in text
        assert len(text) < 20_000
