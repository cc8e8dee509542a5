"""Raw texts at a real server: one <bos> in front, counted and scored, whoever writes it; images too."""

import json
from typing import Any

import pytest

from tests.engine.test_request_media import RED, post
from tests.harness.live_server import MODEL, Server

TEXT = "The ruler of Arvo is"
BOS = 2


def asked(server: Server, path: str, **body: Any) -> Any:
    status, text = post(server, path, **body)
    assert status == 200, text
    return json.loads(text)


def scored(server: Server, **prompt: Any) -> Any:
    """(scored tokens, prompt tokens, answer) of a prompt, or of each in a list."""
    sampling = {"max_new_tokens": 6, "temperature": 0}
    given = asked(server, "/generate", sampling_params=sampling, return_logprob=True, logprob_start_len=0, **prompt)
    made = [
        ([token for _, token, _ in one["meta_info"]["input_token_logprobs"]], one["meta_info"]["prompt_tokens"], one["output_ids"])
        for one in (given if isinstance(given, list) else [given])
    ]
    return made if isinstance(given, list) else made[0]


@pytest.fixture(scope="module")
def ids(server: Server) -> list[int]:
    """The text's tokens with <bos>, of which ``/tokenize`` says what a raw text costs."""
    plain = asked(server, "/tokenize", prompt=TEXT, add_special_tokens=False)["tokens"]
    for text in (TEXT, "<bos>" + TEXT):
        assert asked(server, "/tokenize", prompt=text)["tokens"] == [BOS, *plain]
    return [BOS, *plain]


def test_generate_scores_behind_one_bos(server: Server, ids: list[int]) -> None:
    want = scored(server, input_ids=ids)
    assert want[:2] == (ids, len(ids))
    for text in (TEXT, "<bos>" + TEXT):
        assert scored(server, text=text) == want
    assert scored(server, text=[TEXT, "<bos>" + TEXT]) == [want, want]
    assert scored(server, input_ids=ids[1:])[:2] == (ids[1:], len(ids) - 1), "ids are left as they are"


def test_completions_count_it_and_do_not_echo_it(server: Server, ids: list[int]) -> None:
    def completed(prompt: Any, **more: Any) -> tuple[str, int]:
        given = server.client.completions.create(model=MODEL, prompt=prompt, max_tokens=6, temperature=0, **more)
        assert given.usage is not None
        return given.choices[0].text, given.usage.prompt_tokens

    want = completed(ids)
    assert want[1] == len(ids)
    assert completed(TEXT) == completed("<bos>" + TEXT) == want
    assert completed(TEXT, echo=True) == (TEXT + want[0], len(ids))


def test_a_text_with_an_image_has_one(server: Server) -> None:
    found = [scored(server, text=f"{bos}What is <|image|>?", image_data=[RED]) for bos in ("", "<bos>")]
    assert found[0] == found[1]
    assert [found[0][0].index(BOS), found[0][0].count(BOS)] == [0, 1]


def test_a_chat_has_one(server: Server) -> None:
    messages = [{"role": "user", "content": "Who rules Arvo?"}]
    tokens = asked(server, "/tokenize", model=MODEL, messages=messages)["tokens"]
    assert [tokens[0], tokens.count(BOS)] == [BOS, 1]
    assert server.ask(messages).usage.prompt_tokens == len(tokens)
