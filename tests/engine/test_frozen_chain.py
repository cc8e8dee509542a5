"""The draft as a chain in real engines: the tokens, the accepted drafts and the verify steps of stock's tree of width one."""

import random
import re
from typing import Any

import pytest

from sglang_gemma4.tiny import chat_format, checkpoints, dialogues
from tests.harness.engine_fork import Group, Nursery

MTP: dict[str, Any] = {"speculative_algorithm": "NEXTN", "speculative_eagle_topk": 1}


def answers(nursery: Nursery, family: str, chain: str, steps: int, **engine: Any) -> list[tuple[list[int], int]]:
    """Tokens and verify steps of prompts that are chunked, merged and filtered."""
    rng = random.Random(5)
    dialogue = [dialogues.chat(rng, "held_out") for _ in range(5)] + [dialogues.long_chat(rng, "held_out", sentences=12) for _ in range(3)]
    prompts = [chat_format.render(one, prompt_only=True) for one in dialogue]
    sampling = [{"max_new_tokens": 6 + 5 * number} for number in range(len(prompts))]
    model = checkpoints.SHIPPED / family
    options = {**MTP, "speculative_num_steps": steps, "speculative_num_draft_tokens": steps + 1, "max_running_requests": 4}
    options |= {"speculative_draft_model_path": f"{model}-assistant", "chunked_prefill_size": 64, **engine}
    found = nursery.run(model, [Group(prompts, sampling)], env={"SGLANG_GEMMA4_FROZEN_CHAIN": chain}, **options)[0]
    assert bool(re.search(r"switched off: .*frozen_chain", found[0].log)) == (chain == "0")
    return [(output.token_ids, output.meta_info["spec_verify_ct"]) for output in found]


@pytest.mark.parametrize(("family", "steps"), [("tiny-26b-a4b", 3), ("tiny-e2b", 3), ("tiny-26b-a4b", 1)])
def test_chain_and_tree_accept_the_same_drafts(family: str, steps: int, nursery: Nursery) -> None:
    assert answers(nursery, family, "1", steps) == answers(nursery, family, "0", steps)
