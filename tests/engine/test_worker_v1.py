"""The synchronous worker in real engines: it drafts and accepts what the overlapped one does, and runs only where it is asked for."""

import random
import re
from functools import cache
from typing import Any

import pytest

from sglang_gemma4.tiny import chat_format, checkpoints, dialogues
from tests.harness.engine_fork import EngineFailed, Group, Nursery, Output, without
from tests.harness.instruments import verify_recorder
from tests.harness.left_to_sglang import left

V1, V2 = "FrozenKVMTPWorkerV1", "AdaptiveWorker"
"""SGLang's overlapped worker by the name that our patch gives it, with an adaptive length or without."""
SWITCH, CHAIN = "SGLANG_FROZEN_KV_MTP_V2", "SGLANG_GEMMA4_FROZEN_CHAIN"
RECORD = {"TEST_INSTRUMENTS": "verify_recorder:record"}


def run(nursery: Nursery, family: str, env: dict[str, str], mtp: dict[str, Any] | None = None, **engine: Any) -> list[Output]:
    """Eight prompts of unequal length and answers of unequal length, four at a time: chunked, merged and filtered."""
    rng = random.Random(5)
    dialogue = [dialogues.chat(rng, "held_out") for _ in range(5)] + [dialogues.long_chat(rng, "held_out", sentences=12) for _ in range(3)]
    prompts = [chat_format.render(one, prompt_only=True) for one in dialogue]
    sampling = [{"max_new_tokens": 6 + 5 * number} for number in range(len(prompts))]
    model = checkpoints.SHIPPED / family
    if mtp is not None:
        engine |= {"speculative_draft_model_path": f"{model}-assistant", **mtp}
    options = {"max_running_requests": 4, "chunked_prefill_size": 64, **engine}
    return nursery.run(model, [Group(prompts, sampling)], env={**RECORD, **env}, **options)[0]


def tokens(outputs: list[Output]) -> list[list[int]]:
    """Output tokens of each request."""
    return [output.token_ids for output in outputs]


def verified(outputs: list[Output]) -> list[tuple[list[tuple[list[int], int]], dict[str, Any]]]:
    """Of each request: the tokens and the accepted number of every verify step, and what ``meta_info`` says of its speculation."""
    steps = verify_recorder.read(outputs[0].log)
    found = []
    for output in outputs:
        own = steps[output.meta_info["id"]]
        assert len(own) == output.meta_info["spec_verify_ct"] > 0
        found.append((own, {name: value for name, value in output.meta_info.items() if name.startswith("spec_")}))
    return found


@cache
def plain(nursery: Nursery, family: str) -> list[list[int]]:
    """Tokens without speculation."""
    return tokens(run(nursery, family, {}))


@pytest.mark.parametrize("family", ["tiny-31b", "tiny-e2b", "tiny-26b-a4b"])
def test_v1_drafts_and_accepts_what_v2_does(family: str, nursery: Nursery) -> None:
    v1 = run(nursery, family, {SWITCH: "0", CHAIN: "1"}, {})
    assert tokens(v1) == plain(nursery, family)
    assert verify_recorder.workers(v1[0].log) == {V1}
    assert re.search(rf"declined: .*frozen_chain \({SWITCH}=0 selects the worker v1", v1[0].log)
    assert any(accepted > 2 for steps, _ in verified(v1) for _, accepted in steps), "drafts are accepted"
    assert any(accepted < 4 for steps, _ in verified(v1) for _, accepted in steps), "drafts are refused"
    for chain in ("0", "1"):
        v2 = run(nursery, family, {CHAIN: chain}, {})
        assert verify_recorder.workers(v2[0].log) == {V2}, "the default"
        assert bool(re.search(r"switched off: .*frozen_chain", v2[0].log)) == (chain == "0")
        assert tokens(v2) == tokens(v1)
        assert verified(v2) == verified(v1)


@pytest.mark.parametrize(
    "mtp",
    [
        {"speculative_num_steps": 1},
        {"speculative_num_steps": 5},
        {"speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8},
    ],
    ids=["1 step", "5 steps", "tree"],
)
def test_other_shapes(mtp: dict[str, Any], nursery: Nursery) -> None:
    v1, v2 = (run(nursery, "tiny-e2b", {SWITCH: switch}, mtp) for switch in "01")
    assert tokens(v1) == tokens(v2) == plain(nursery, "tiny-e2b")
    assert verified(v1) == verified(v2)
    declined = "--speculative-eagle-topk 4, 8 draft tokens: drafts are trees"
    assert (declined in left(v1[0].log)["worker_v1"]) == ("speculative_eagle_topk" in mtp)


def test_requests_are_retracted_and_prefilled_again(nursery: Nursery) -> None:
    # by ratio: the sliding pool is what runs out
    pool = {"max_running_requests": 8, "max_total_tokens": 280, "schedule_conservativeness": 0.01, "chunked_prefill_size": 48}
    v1 = run(nursery, "tiny-26b-a4b", {SWITCH: "0", **without("swa_sizing")}, {}, **pool)
    assert sum(output.meta_info["num_retractions"] for output in v1) > 0
    assert tokens(v1) == plain(nursery, "tiny-26b-a4b")
    assert verify_recorder.workers(v1[0].log) == {V1}


def test_overlap_is_switched_off_with_a_reason(nursery: Nursery) -> None:
    said = f"overlap scheduling is off: {SWITCH}=0 selects the MTP worker v1, which is synchronous"
    overlapped = run(nursery, "tiny-26b-a4b", {SWITCH: "0"}, {}, disable_overlap_schedule=False)
    assert tokens(overlapped) == plain(nursery, "tiny-26b-a4b")
    assert verify_recorder.workers(overlapped[0].log) == {V1}
    for line in (said, "MTP worker v1: synchronous, one eager forward"):
        assert overlapped[0].log.count(line) == 1


def test_without_mtp_nothing_changes(nursery: Nursery) -> None:
    without = run(nursery, "tiny-26b-a4b", {SWITCH: "0"})
    assert tokens(without) == plain(nursery, "tiny-26b-a4b")
    for line in ("overlap scheduling is off: ", "MTP worker v1: "):
        assert line not in without[0].log


def test_it_runs_without_the_repair_of_the_other_worker(nursery: Nursery) -> None:
    v1 = run(nursery, "tiny-26b-a4b", {SWITCH: "0", "SGLANG_GEMMA4_FROZEN_VIEWS": "0"}, {})
    assert tokens(v1) == plain(nursery, "tiny-26b-a4b")
    assert verify_recorder.workers(v1[0].log) == {V1}


def test_a_value_that_is_not_boolean_ends_the_start(nursery: Nursery) -> None:
    with pytest.raises(EngineFailed, match=rf"{SWITCH}='maybe' is not a boolean; set it to 1 or 0, or unset it \(default 1\)"):
        run(nursery, "tiny-26b-a4b", {SWITCH: "maybe"}, {})
