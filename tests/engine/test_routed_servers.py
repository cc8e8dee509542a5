"""Servers behind SGLang's router: one is lost or replaced while requests run, and every answer is right."""

import re
from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import MTP

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(30 + 9 * n))] for n in range(8)]
MODEL = "tiny-e2b"
NEW = {"max_new_tokens": 150}
STREAMS = 4
"""Requests that are streamed when a whole server is lost."""


@pytest.fixture(scope="module")
def alone(nursery: Nursery) -> list[Output]:
    """Answers of one server, without MTP."""
    return nursery.run(resolve(MODEL), [Group(PROMPTS, NEW)])[0]


def rounds(nursery: Nursery, servers: str, client: str) -> list[list[Output]]:
    """Answers behind the router: all prompts, round by round of that client."""
    engine: dict[str, Any] = {**MTP, "speculative_draft_model_path": f"{resolve(MODEL)}-assistant"}
    group = Group(PROMPTS, NEW, client=f"tests.harness.instruments.routed_servers:{client}", extra={"streams": STREAMS})
    [found] = nursery.run(resolve(MODEL), [group], {"TEST_INSTRUMENTS": f"routed_servers:{servers}"}, time_limit=580, **engine)
    return [found[start : start + len(PROMPTS)] for start in range(0, len(found), len(PROMPTS))]


def tokens(answers: list[Output]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


def test_of_two_servers_one_is_lost_and_the_other_replaced(nursery: Nursery, alone: list[Output]) -> None:
    """What the lost one had begun is asked again, but for streams, which end; what the other had is answered before it ends."""
    lost, *others = rounds(nursery, "two", "kill_one_of_two")
    cut = [number for number in range(STREAMS) if lost[number].text]
    for number in range(len(PROMPTS)):
        found, due = lost[number].token_ids, alone[number].token_ids
        assert found == (due[: len(found)] if number in cut else due)
    print([answer.text for answer in lost])
    assert 0 < len(cut) < STREAMS
    assert len(others) == 3
    for answers in others:
        assert [answer.text for answer in answers] == [""] * len(PROMPTS)
        assert tokens(answers) == tokens(alone)


def test_a_decode_server_is_lost_and_then_the_prefill_server(nursery: Nursery, alone: list[Output]) -> None:
    """With a decode server left all are answered; without a prefill server each says so in bounded time; with it again all are answered."""
    decode_lost, after, prefill_lost, without, again = rounds(nursery, "pair_of_decodes", "kill_one_decode")
    log = decode_lost[0].log
    print(
        *re.findall("ROUTED.*", log),
        *(answer.text for answers in (decode_lost, after, prefill_lost, without) for answer in answers),
        sep="\n",
    )
    for answers in (decode_lost, after, again):
        assert [answer.text for answer in answers] == [""] * len(PROMPTS)
        assert tokens(answers) == tokens(alone)
    for answer, due in zip(prefill_lost, alone, strict=True):
        assert answer.text or answer.token_ids == due.token_ids
    assert all(answer.text for answer in without)
    assert re.search("ROUTED past the router .*the prefill server of this request does not answer at its bootstrap address", log)
