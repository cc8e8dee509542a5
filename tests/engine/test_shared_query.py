"""Layers that share KV project queries only: the same tokens and log-probabilities, in the target and in the draft."""

import random
import re

import pytest

from sglang_gemma4.tiny import chat_format, checkpoints, dialogues
from tests.harness.engine_fork import Group, Nursery, Output, without
from tests.harness.inputs.drafting import with_assistant
from tests.harness.left_to_sglang import left

MODEL = checkpoints.SHIPPED / "tiny-e2b"


def run(nursery: Nursery, switch: str) -> list[Output]:
    rng = random.Random(9)
    prompts = [chat_format.render(dialogues.chat(rng, "held_out"), prompt_only=True) for _ in range(6)]
    group = Group(prompts, {"max_new_tokens": 24}, logprobs=True)
    env = without(*["shared_query"][int(switch) :])
    return nursery.run(MODEL, [group], env=env, **with_assistant(MODEL), chunked_prefill_size=64)[0]


def test_queries_alone_give_the_same_answers(nursery: Nursery) -> None:
    ours, stock = run(nursery, "1"), run(nursery, "0")
    for one, other in zip(ours, stock, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.meta_info["spec_verify_ct"] == other.meta_info["spec_verify_ct"]
    assert [bool(re.search(r"switched off: .*shared_query", one[0].log)) for one in (ours, stock)] == [False, True]
    assert "shared_query" not in left(ours[0].log)
