"""An int8 KV cache with what else a server may run: trees of drafts, lengths that switch, two ranks, adapters."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.tiny import checkpoints, random_adapters
from tests.engine import test_fast_prefill
from tests.engine.test_adaptive_draft import LENGTHS_BY_BATCH, switches
from tests.engine.test_kv_format_engines import NEW_TOKENS, accept_length, answers, prompts, tokens
from tests.engine.test_two_ranks import RANKS
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import with_assistant
from tests.harness.instruments import row_counter
from tests.harness.left_to_sglang import left

KIND = "int8_per_token_head"
TREE: dict[str, Any] = {"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8, "page_size": 1}


def serve(
    nursery: Nursery, family: str, groups: list[Group], env: dict[str, str] | None = None, mtp: bool = True, **engine: Any
) -> list[list[Output]]:
    model = checkpoints.SHIPPED / family
    drafts = with_assistant(model) if mtp else {}
    return nursery.run(model, groups, env, **{"max_running_requests": 8, "kv_cache_dtype": KIND, **drafts, **engine})


@pytest.mark.parametrize("family", ["tiny-26b-a4b", "tiny-e2b"])
def test_accepted_branches_take_their_scales_along(family: str, nursery: Nursery) -> None:
    """The tokens of plain decoding; where scales stay behind they are others."""
    group = [Group(prompts(), {"max_new_tokens": NEW_TOKENS})]
    plain, tree = answers(nursery, family, KIND), serve(nursery, family, group, **TREE)[0]
    assert tokens(tree) == tokens(plain)
    assert accept_length(tree) > accept_length(answers(nursery, family, KIND, True)), "of more branches more are right"


def test_scales_that_stay_behind_are_seen(nursery: Nursery) -> None:
    group = [Group(prompts(), {"max_new_tokens": NEW_TOKENS})]
    env = {"TEST_INSTRUMENTS": "lost_scales:left_behind"}
    left = serve(nursery, "tiny-26b-a4b", group, env, **TREE)[0]
    assert tokens(left) != tokens(answers(nursery, "tiny-26b-a4b", KIND))


def test_lengths_that_switch(nursery: Nursery, tmp_path: Path) -> None:
    """With the batch: 3 draft steps, none, 1. A plain step writes and reads levels as a verify step does."""
    path = tmp_path / "by_batch.json"
    path.write_text(json.dumps(LENGTHS_BY_BATCH))
    group = Group(prompts()[:7], [{"max_new_tokens": 8 + 9 * number} for number in range(7)])
    engine: dict[str, Any] = {"max_running_requests": 4}
    plain = serve(nursery, "tiny-26b-a4b", [group], mtp=False, **engine)[0]
    adaptive = serve(nursery, "tiny-26b-a4b", [group], speculative_adaptive=True, speculative_adaptive_config=path, **engine)[0]
    assert tokens(adaptive) == tokens(plain)
    found = switches(adaptive[0].log)
    assert {new for _, new in found} == {0, 1, 3}
    assert {(1, 0), (0, 3)} <= found


@pytest.mark.parametrize("family", ["tiny-26b-a4b", "tiny-31b"])
def test_two_ranks(family: str, nursery: Nursery) -> None:
    """Each quantises its own heads: a head's levels are those of one rank."""
    group = Group(prompts(), {"max_new_tokens": NEW_TOKENS}, logprobs=True)
    one, two = serve(nursery, family, [group])[0], serve(nursery, family, [group], RANKS, tp_size=2)[0]
    for answer, reference in zip(two, one, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=0.01), "a sum in another order may round a key to the next level"
    assert accept_length(two) == pytest.approx(accept_length(one), rel=0.01)


def test_adapters(nursery: Nursery, tmp_path: Path) -> None:
    """Keys and values of an adapter's requests are its own, quantised like any other; its drafts are verified by them."""
    model = checkpoints.SHIPPED / "tiny-26b-a4b"
    sizes = random_adapters.sizes_of_checkpoint(model)
    paths = {"one": str(random_adapters.write(tmp_path / "one", sizes, 4, seed=0, spread=0.05))}
    asked = prompts()[:9]

    def group(adapters: list[str | None]) -> Group:
        return Group(asked, {"max_new_tokens": NEW_TOKENS}, client="generate:adapters", extra={"adapters": adapters})

    mixed = group([("one", None)[number % 2] for number in range(len(asked))])
    none = group([None] * len(asked))
    options: dict[str, Any] = {"lora_paths": paths, "max_lora_rank": 4, "lora_target_modules": ["all"], "max_loras_per_batch": 2}
    plain, without = serve(nursery, model.name, [mixed, none], mtp=False, **options)
    drafted = serve(nursery, model.name, [mixed], **options)[0]
    exact = serve(nursery, model.name, [mixed], **{**options, "kv_cache_dtype": "auto"})[0]
    assert tokens(drafted) == tokens(plain)
    assert tokens(plain)[1::2] == tokens(without)[1::2]
    assert sum(map(list.__eq__, tokens(plain)[0::2], tokens(without)[0::2])) <= 2
    same = sum(map(list.__eq__, tokens(drafted), tokens(exact)))
    print(f"{same} of {len(asked)} answers are those of a float32 cache")
    assert same >= 0.75 * len(asked)
    steps = sum(one.meta_info["spec_verify_ct"] for one in drafted)
    assert steps < 0.9 * len(asked) * NEW_TOKENS


def test_prefills_of_shared_layers_stay_short(nursery: Nursery) -> None:
    """YOCO reads levels too: layers that share KV get a prompt's last row, with MTP and without, whole and chunked."""
    model, group = "tiny-e2b", Group(prompts()[:6], {"max_new_tokens": 8})
    for mtp in (True, False):
        ours, stock = (
            serve(
                nursery, model, [group], {"SGLANG_GEMMA4_YOCO": on, "TEST_INSTRUMENTS": "row_counter:install"}, mtp, chunked_prefill_size=64
            )[0]
            for on in "10"
        )
        assert tokens(ours) == tokens(stock)
        assert "yoco" not in left(ours[0].log)
        assert not re.search(r"(switched off|declined|idle): .*\byoco\b", ours[0].log)
        first, layers = test_fast_prefill.FIRST_SHARED, test_fast_prefill.LAYERS
        found = row_counter.prefills(ours[0].log)
        assert found
        for prefill in found:
            rows = [count for count, _ in prefill]
            assert len(rows) <= layers
            assert len(set(rows[:first])) == 1
            assert all(count <= 8 for count in rows[first:]), "a row of each request"
        assert max(prefill[0][0] for prefill in found) == 64
        assert all(len({rows for rows, _ in prefill}) == 1 for prefill in row_counter.prefills(stock[0].log))
