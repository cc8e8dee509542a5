"""Drafts that are accepted: the package's defaults lose none of stock's, and the draft's query stands where SGLang puts it.

What is accepted is compared with transformers' models in float32, driven over the same answers at once (``sglang_gemma4.tiny.drafting``).
"""

import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from sglang_gemma4.tiny import chat_format, checkpoints, dialogues
from sglang_gemma4.tiny.batches import document
from sglang_gemma4.tiny.drafting import matched_drafts, verify_rounds
from sglang_gemma4.tiny.packed_forward import hidden_states, masks_of, to_device
from tests.harness.engine_fork import Group, Nursery, Output

FAMILIES = ("tiny-26b-a4b", "tiny-e2b", "tiny-31b")
NEW_TOKENS, STEPS = 48, 3
ENGINE: dict[str, Any] = {"max_running_requests": 8, "speculative_algorithm": "NEXTN", "speculative_num_steps": STEPS}
ENGINE |= {"speculative_eagle_topk": 1, "speculative_num_draft_tokens": STEPS + 1}
# All that touches a draft, but for sync_mtp, without which stock's does not run on this engine.
CHANGES = "frozen_views,frozen_chain,draft_graph,shared_query,stop_order,shared_kv,draft_budget,verify_penalties,verify_cuts"
STOCK = {"SGLANG_GEMMA4_WITHOUT": CHANGES}
QUERY = -1
"""Where SGLang puts the draft's query, counted from the last committed key; transformers puts it at its own token, 1."""


@cache
def prompts() -> list[list[int]]:
    """Token ids of twelve held-out prompts; four are longer than any window."""
    rng = random.Random(9)
    chosen = [dialogues.chat(rng, "held_out") for _ in range(6)] + [dialogues.story_chat(rng, "held_out") for _ in range(2)]
    chosen += [dialogues.long_chat(rng, "held_out", sentences=12) for _ in range(4)]
    tokenizer = Tokenizer.from_file(str(checkpoints.SHIPPED / FAMILIES[0] / "tokenizer.json"))  # one for all three
    return [list(tokenizer.encode(chat_format.render(one, prompt_only=True), add_special_tokens=False).ids) for one in chosen]


@cache
def answers(nursery: Nursery, family: str, *environment: tuple[str, str]) -> list[Output]:
    """One engine's answers."""
    model = checkpoints.SHIPPED / family
    group = Group(prompts(), {"max_new_tokens": NEW_TOKENS})
    return nursery.run(model, [group], dict(environment), speculative_draft_model_path=f"{model}-assistant", **ENGINE)[0]


def steps(outputs: list[Output]) -> list[int]:
    return [output.meta_info["spec_verify_ct"] for output in outputs]


@torch.inference_mode()
def expected_steps(model: Path, outputs: list[Output], position: int) -> list[int]:
    """Verify steps with the query at ``position``, if the drafts are transformers', over keys of accepted tokens only."""
    from transformers import AutoModelForImageTextToText
    from transformers.models.gemma4_assistant import Gemma4AssistantForCausalLM

    target = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()
    assistant = Gemma4AssistantForCausalLM.from_pretrained(f"{model}-assistant", dtype=torch.float32).eval()
    config = target.config.text_config
    found = []
    for prompt, output in zip(prompts(), outputs, strict=True):
        batch = to_device(document(prompt + output.token_ids)[None], None, config, "cpu")
        states = hidden_states(target, batch, shared_kv=True)
        window = config.sliding_window - 1  # SGLang's draft sees a key less: an older one may be freed
        masks = masks_of(batch.document, torch.full_like(batch.document, -1), window, False)
        seen = replace(batch, masks=masks, positions=batch.positions + position - 1)  # the drafting itself adds one
        matched = matched_drafts(target, assistant, seen, states, STEPS)[0, len(prompt) - 1 :].tolist()
        found.append(len(verify_rounds(matched, NEW_TOKENS - 1)))
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_the_defaults_never_accept_less_than_stock(family: str, nursery: Nursery) -> None:
    ours, stock = answers(nursery, family), answers(nursery, family, *STOCK.items())
    assert [bool(re.search(r"switched off: .*frozen_views", one[0].log)) for one in (ours, stock)] == [False, True]
    assert [one.token_ids for one in ours] == [one.token_ids for one in stock]
    assert sum(steps(ours)) <= sum(steps(stock)) < 0.6 * (NEW_TOKENS - 1) * len(stock), "drafts are accepted"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_query_stands_where_it_is_said_to_stand(family: str, nursery: Nursery) -> None:
    model = checkpoints.SHIPPED / family
    outputs = answers(nursery, family, *STOCK.items())
    assert steps(outputs) == expected_steps(model, outputs, QUERY)
