"""Engines whose KV cache is int8 or fp8 with scales by token and head: answers, drafts, and pools that are always full."""

import math
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from sglang_gemma4.kernels.kv_cache.formats import FORMATS
from sglang_gemma4.models import model_shape
from sglang_gemma4.models.config_files import read_config
from sglang_gemma4.quality import gates
from sglang_gemma4.tiny import chat_format, checkpoints, dialogues
from tests.engine import test_weight_updates
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import MTP, with_assistant

FAMILIES = ("tiny-26b-a4b", "tiny-31b", "tiny-e2b")
NEW_TOKENS, REQUESTS = 32, 24
FLOAT = "auto"


@cache
def prompts() -> list[list[int]]:
    """Token ids of held-out prompts, some longer than any window."""
    rng = random.Random(9)
    chosen = [dialogues.chat(rng, "held_out") for _ in range(REQUESTS // 2)] + [dialogues.story_chat(rng, "held_out") for _ in range(4)]
    chosen += [dialogues.long_chat(rng, "held_out", sentences=12) for _ in range(REQUESTS // 2 - 4)]
    tokenizer = Tokenizer.from_file(str(checkpoints.SHIPPED / FAMILIES[0] / "tokenizer.json"))
    return [list(tokenizer.encode(chat_format.render(one, prompt_only=True), add_special_tokens=False).ids) for one in chosen]


@cache
def answers(nursery: Nursery, family: str, kind: str, mtp: bool = False, **engine: Any) -> list[Output]:
    """One engine's greedy answers, with the log-probabilities of their tokens."""
    model = checkpoints.SHIPPED / family
    given: dict[str, Any] = {"max_running_requests": 8, "kv_cache_dtype": kind, **engine}
    given |= with_assistant(model) if mtp else {}
    groups = [Group(prompts(), {"max_new_tokens": NEW_TOKENS}, logprobs=not mtp)]
    return nursery.run(model, groups, **given)[0]


def tokens(outputs: list[Output]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def accept_length(outputs: list[Output]) -> float:
    steps: int = sum(output.meta_info["spec_verify_ct"] for output in outputs)
    return sum(len(output.token_ids) - 1 for output in outputs) / steps


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_mtp_gives_plain_decoding_s_tokens_and_accepts_as_before(family: str, kind: str, nursery: Nursery) -> None:
    plain, drafted, before = (answers(nursery, family, *how) for how in ((kind,), (kind, True), (FLOAT, True)))
    assert tokens(drafted) == tokens(plain)
    assert accept_length(drafted) >= 0.98 * accept_length(before) > 1


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_lose_no_more_than_the_gates_allow(family: str, kind: str, nursery: Nursery) -> None:
    """Each engine's certainty of its own greedy tokens, and how many of them are those of the float32 cache."""
    found, before = answers(nursery, family, kind), answers(nursery, family, FLOAT)
    certainty = [
        sum(map(sum, (one.logprobs for one in outputs))) / sum(len(one.token_ids) for one in outputs) for outputs in (found, before)
    ]
    assert all(math.isfinite(value) for one in found for value in one.logprobs)
    assert abs(certainty[1] - certainty[0]) <= gates.read(gates.SHIPPED)["nats_per_token_loss"]
    same = sum(map(list.__eq__, tokens(found), tokens(before)))
    print(f"{family} {kind}: nats {certainty[0]:.4f}, {certainty[1]:.4f}; {same} of {len(before)} answers the same")
    assert same >= (0.75 if kind.startswith("int8") else 0.5) * len(before)


@pytest.mark.parametrize("kind", FORMATS)
def test_chunks_of_a_prompt_do_not_change_the_answer(kind: str, nursery: Nursery) -> None:
    whole, chunked = answers(nursery, "tiny-e2b", kind), answers(nursery, "tiny-e2b", kind, chunked_prefill_size=32)
    assert tokens(whole) == tokens(chunked)


@pytest.mark.parametrize("mtp", [False, True], ids=["plain", "mtp"])
def test_a_pool_that_is_always_full(mtp: bool, nursery: Nursery) -> None:
    """Slots are taken again and again, requests are retracted, prefixes stay in the radix tree: the tokens of a pool with room for all."""
    room = answers(nursery, "tiny-26b-a4b", "int8_per_token_head", mtp)
    full = answers(nursery, "tiny-26b-a4b", "int8_per_token_head", mtp, max_total_tokens=700, schedule_conservativeness=0.05)
    assert tokens(full) == tokens(room)
    assert "retract" in full[0].log.lower()


@pytest.mark.parametrize("family", ["tiny-26b-a4b", "tiny-e2b"])
def test_the_pools_count_their_scales(family: str, nursery: Nursery) -> None:
    """Bytes of a token by the checkpoint's config: one for each element and four for each head's scale."""
    log = answers(nursery, family, "int8_per_token_head", max_total_tokens=60000, swa_full_tokens_ratio=0.5)[0].log
    found, per_token = Sizes(log), bytes_per_token(family, kv_bytes=1, scale_bytes=4)
    expected = found.full * per_token["full"] + found.sliding * per_token["sliding"]
    assert found.gib * 2**30 == pytest.approx(expected, rel=0.02, abs=2**30 / 100)


class Sizes:
    """Both pools' tokens and the GiB that they took, as an engine's log says."""

    def __init__(self, log: str) -> None:
        gib, sliding, full = re.findall(r"SWAKVPool mem usage: ([\d.]+) GB, swa size: (\d+), full size: (\d+)", log)[0]
        self.full, self.sliding, self.gib = int(full), int(sliding), float(gib)


def bytes_per_token(family: str, **of_an_element: float) -> dict[str, float]:
    """By the checkpoint's config."""
    config = read_config(str(checkpoints.SHIPPED / family), "model")
    assert config is not None
    return model_shape.kv_bytes_per_token(config, **of_an_element)


@cache
def sized(nursery: Nursery, family: str, kind: str, instruments: str = "") -> Sizes:
    """The pools of an engine that sizes them by window from what memory is free, as on a card; another test's processes take none of it."""
    steady = {"TEST_INSTRUMENTS": f"device_memory:steady {instruments}".strip()}
    group = Group(prompts()[:1], {"max_new_tokens": 2})
    options: dict[str, Any] = {"max_total_tokens": None, "mem_fraction_static": 0.2}
    log = nursery.run(checkpoints.SHIPPED / family, [group], steady, kv_cache_dtype=kind, **options)[0][0].log
    assert "pools by window" in log
    return Sizes(log)


@pytest.mark.parametrize("family", ["tiny-26b-a4b", "tiny-e2b"])
def test_pools_by_window_take_the_bytes_that_were_there(family: str, nursery: Nursery) -> None:
    """A quantised cache takes as much memory as one of float32, and has the more tokens by the bytes of a token, its scales counted."""
    before, found = sized(nursery, family, FLOAT), sized(nursery, family, "int8_per_token_head")
    assert found.gib == pytest.approx(before.gib, rel=0.01)
    of_float, of_levels = bytes_per_token(family, kv_bytes=4), bytes_per_token(family, kv_bytes=1, scale_bytes=4)
    assert found.full / before.full == pytest.approx(of_float["full"] / of_levels["full"], rel=0.05), "next to the sliding pool's share"


def test_scales_that_are_not_counted_take_memory_that_is_not_theirs(nursery: Nursery) -> None:
    """What the test above would see."""
    found = sized(nursery, "tiny-26b-a4b", "int8_per_token_head", "lost_scales:uncounted")
    assert found.gib > 1.04 * sized(nursery, "tiny-26b-a4b", FLOAT).gib


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with other weights; its assistant beside it."""
    folder = tmp_path_factory.mktemp("trained")
    test_weight_updates.trained_on("tiny-e2b-assistant", folder)
    return test_weight_updates.trained_on("tiny-e2b", folder)


def test_memory_that_was_released_and_weights_that_changed(trained: Path, nursery: Nursery) -> None:
    """After a resume every scale is a number again, and answers are those of a server that was started with the new weights."""
    model, asked = checkpoints.SHIPPED / "tiny-e2b", {"max_new_tokens": NEW_TOKENS}
    draft = model.with_name("tiny-e2b-assistant")
    steps = [["release", {}], ["resume", {}]]
    for path, selector in ((model, "target"), (draft, "draft")):
        steps.append(["tensor", {"path": str(path), "selector": selector}])
    changed = [["disk", {"path": str(path)}] for path in (trained, trained.with_name(draft.name))]
    groups = [Group(prompts()[:8], asked)]
    groups += [Group(prompts()[:8], asked, client="weight_changes:play", extra={"steps": some}) for some in (steps, changed)]
    engine: dict[str, Any] = {**MTP, "kv_cache_dtype": "int8_per_token_head", "max_total_tokens": 4096}
    before, resumed, after = nursery.run(
        model, groups, {"TEST_INSTRUMENTS": "weight_walk:discard lost_scales:install"}, speculative_draft_model_path=draft, **engine
    )
    fresh = nursery.run(trained, groups[:1], speculative_draft_model_path=trained.with_name(draft.name), **engine)[0]
    assert re.findall(r"SCALES: (\d+) of", before[0].log) == ["0"]
    assert tokens(resumed) == tokens(before)
    assert tokens(after) == tokens(fresh) != tokens(before)
    assert accept_length(after) == accept_length(fresh) > 1
