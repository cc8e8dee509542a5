"""SGLang's unified memory: one buffer for full and sliding layers, with a split that moves. Tokens are those of two pools, MTP or not.

Real engines of a model with a window of 64 tokens, with SGLang's pool checks fatal in every step and when idle.
"""

import re
from itertools import pairwise
from typing import Any

import pytest

from tests.engine.test_everything_on import FASTER
from tests.engine.test_one_window import BESIDE, LARGE, LOOPS, SOME, large, retractions, serve, tokens_are_equal
from tests.engine.test_prefill_beside import joined
from tests.harness.engine_fork import Group, Nursery, Output, without
from tests.harness.inputs.mtp_cases import MTP, greedy, timed
from tests.harness.left_to_sglang import left
from tests.harness.oracles.reference import CHECKPOINTS, text_prompts
from tests.harness.programs import moving_boundary

SMALL = {"enable_unified_memory": True, "max_total_tokens": 1800, "swa_full_tokens_ratio": 0.4}
"""Memory for 1,800 full and 720 sliding tokens, shared by eight requests of 150 to 450 tokens."""


def shared(nursery: Nursery, loop: str, **engine: Any) -> dict[str, list[Output]]:
    instruments, options, env = LOOPS[loop]
    return serve(nursery, instruments, {**LARGE, **SMALL, **options, **engine}, env)


def prompts_hit(found: dict[str, list[Output]]) -> bool:
    """Whether prompts hit the tree. Twins always do; a turn only if it starts before its prefix is evicted, which is a matter of time."""
    return any(output.meta_info["cached_tokens"] for name in {"twins", "four of one"} & set(found) for output in found[name])


@pytest.mark.parametrize("loop", ["plain", "plain-overlapped", "mtp", "mtp-overlapped", "mtp-retracted"])
def test_tokens_are_those_of_two_large_pools(loop: str, nursery: Nursery) -> None:
    """Chunked prefills, turns that hit the radix tree, aborts, four answers of one prompt, logprobs and a grammar; requests are retracted.

    Pages are of one token: SGLang's allocator of longer ones is a Triton kernel.
    """
    found = shared(nursery, loop)
    tokens_are_equal(found, large(nursery))
    log = found["turns"][0].log
    assert "UNIFIED MEMORY POOL ENABLED" in log
    assert re.search(r"^TAKEN", log, re.MULTILINE), "running requests gave back their prompts' windows"
    assert "own_window" not in left(log)
    assert prompts_hit(found)
    assert loop != "mtp-retracted" or sum(retractions(found, name) for name in found) > 10


TIGHT = {**SMALL, "max_total_tokens": 1400}
"""So little of it that pages have to move between most steps, and some requests are retracted."""


@pytest.mark.parametrize(
    ("loop", "groups"),
    [("mtp-overlapped", SOME), *((loop, ()) for loop in ("plain", "plain-overlapped", "mtp", "mtp-overlapped", "mtp-retracted"))],
    ids=["some", "plain", "plain-overlapped", "mtp", "mtp-overlapped", "mtp-retracted"],
)
def test_prompts_go_beside_running_requests_while_pages_move(loop: str, groups: tuple[str, ...], nursery: Nursery) -> None:
    """Tokens are those of two large pools, in turn. A pool is told what both halves of a joined forward write (``page_moves``).

    Of a step that joins nobody is retracted: a prefill goes alone where the decode step would not fit.
    """
    _, options, _ = LOOPS[loop]
    trace = "retracting" if loop == "mtp-retracted" else "overlapped" if "disable_overlap_schedule" in options else "watch"
    found = serve(nursery, f"beside_trace:{trace} page_moves:watch", {**LARGE, **TIGHT, **options}, BESIDE, groups)
    tokens_are_equal(found, large(nursery, groups))
    log = found["turns"][0].log
    events = re.findall(r"^(BESIDE|MOVED|IN FLIGHT|RETRACTED)(.*)$", log, re.MULTILINE)
    told = [int(what.split()[-1]) for event, what in events if event == "IN FLIGHT"]
    steps = joined(log)
    chunks = [rid for step in steps for rid in set(step.prefilled)]
    assert len(steps) > 50
    assert len(chunks) > len(set(chunks)), "a prompt in more than one chunk"
    assert prompts_hit(found)
    assert loop == "mtp-retracted" or ("RETRACTED", " beside") not in events
    names = [event for event, _ in events]
    assert sum(pair == ("MOVED", "BESIDE") for pair in pairwise(names)) > 3, "pages of requests that are about to run"
    if trace == "watch":
        assert not told, "the forward runs on the stream on which pages are moved"
        return
    places = [place for place, name in enumerate(names) if name == "BESIDE"]
    assert {name for place in places for name in names[place + 1 : place + 5]} == {"IN FLIGHT"}, "nothing moves between the two halves"
    after = [[int(what.split()[-1]) for _, what in events[place + 1 : place + 5]] for place in places]
    assert after == [[sum(step.rows)] * 4 for step in steps], "by either half the slots of both, to the pools of full and of sliding layers"


def test_so_they_do_in_pages_of_sixteen_tokens(interpreting: Nursery, nursery: Nursery) -> None:
    """SGLang's allocator of longer pages is a Triton kernel, interpreted here; attention is torch's."""
    instruments, names = "beside_trace:overlapped page_moves:watch", ("short answers", "turns")
    engine = {**LARGE, **TIGHT, **LOOPS["mtp-overlapped"][1], "page_size": 16}
    found = serve(interpreting, instruments, engine, BESIDE, names)
    for name in names:
        assert [output.token_ids for output in found[name]] == [output.token_ids for output in large(nursery)[name]], name
    log = found["turns"][0].log
    assert len(joined(log)) > 15
    assert len(re.findall(r"^MOVED", log, re.MULTILINE)) > 3


def test_a_moving_split_holds_what_the_best_fixed_one_holds(nursery: Nursery) -> None:
    """Of short requests and of long ones, in the same memory; each fixed split holds fewer of one of both.

    On average over steps: half a request is the steps in which a load has not arrived as a whole.
    """
    found, answers = zip(*(moving_boundary.run(nursery, split) for split in (moving_boundary.MOVING, 1.0, 0.25)), strict=True)
    moving, for_short, for_long = ([load.running for load in loads] for loads in found)
    assert moving[0] > for_short[0] - 0.5 > for_long[0]
    assert moving[1] > for_long[1] - 0.5 > for_short[1]
    assert moving[2] > for_short[2] - 0.5 > for_long[2], "after long requests it holds as many short ones as before"
    tokens = [[[one.token_ids for one in group] for group in groups] for groups in answers]
    assert tokens[0] == tokens[1] == tokens[2]


@pytest.mark.parametrize("mtp", [False, True], ids=["plain", "mtp"])
@pytest.mark.parametrize("model", ["tiny-26b-a4b", "tiny-e2b"])
def test_our_kernels_read_and_write_pages_of_all_layers(model: str, mtp: bool, interpreting: Nursery) -> None:
    """Interpreted, in pages of 16 tokens: prompts in chunks, a radix hit, decode and verify steps, keys written as they are rotated."""
    prompts = moving_boundary.prompts(3, 12, 0) + moving_boundary.prompts(1, 72, 9)
    groups = [Group(prompts, {"max_new_tokens": 8}, logprobs=True), Group([[*prompts[-1], 400, 401]], {"max_new_tokens": 4})]
    options: dict[str, Any] = {"attention_backend": "triton", "page_size": 16, "chunked_prefill_size": 32}
    options |= {**MTP, "speculative_draft_model_path": CHECKPOINTS / f"{model}-assistant"} if mtp else {}
    env = {"SGLANG_GEMMA4_ATTENTION": "1", "TEST_INSTRUMENTS": "kernel_counters:attention", **without("draft_argmax", "grouped_experts")}
    one, two = (
        interpreting.run(CHECKPOINTS / model, groups, env=env, time_limit=600.0, enable_unified_memory=unified, **options)
        for unified in (True, False)
    )
    log = one[0][0].log
    assert "UNIFIED MEMORY POOL ENABLED" in log
    assert "kv_write" not in left(log)
    assert [word for word in ("PREFILLED", "VERIFIED" if mtp else "DECODED") if word not in log] == []
    assert one[1][0].meta_info["cached_tokens"] == two[1][0].meta_info["cached_tokens"] == 64
    for answer, expected in zip([*one[0], *one[1]], [*two[0], *two[1]], strict=True):
        assert answer.token_ids == expected.token_ids
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
        assert answer.meta_info.get("spec_verify_ct") == expected.meta_info.get("spec_verify_ct")


@pytest.mark.parametrize("model", ["tiny-26b-a4b", "tiny-e2b"])
def test_our_kernels_compute_joined_forwards(model: str, interpreting: Nursery, nursery: Nursery) -> None:
    """Interpreted, in pages of 16 tokens: rows of both kinds written in one go as they are rotated, shared layers over the rows read."""
    texts = text_prompts(model, [20, 44])
    asked: list[dict[str, Any]] = [{"rid": "long"}, {"rid": "one", "after": ["long", 1]}]
    groups = [timed(texts, [greedy(16), greedy(3)], asked)]
    few = {"speculative_num_steps": 1, "speculative_num_draft_tokens": 2} if model == "tiny-e2b" else {}
    options: dict[str, Any] = {**MTP, "speculative_draft_model_path": CHECKPOINTS / f"{model}-assistant", "page_size": 16, **few}
    options |= {"chunked_prefill_size": 32, "disable_overlap_schedule": False}
    faster = {f"SGLANG_GEMMA4_{name}": "1" for name in FASTER}
    instruments = "kernel_counters:attention beside_trace:overlapped page_moves:watch"
    env = {**faster, **BESIDE, "TEST_INSTRUMENTS": instruments, **without("draft_argmax", "grouped_experts")}
    found = interpreting.run(CHECKPOINTS / model, groups, env, 600.0, enable_unified_memory=True, attention_backend="triton", **options)[0]
    expected = nursery.run(CHECKPOINTS / model, groups, {"TEST_INSTRUMENTS": "beside_trace:overlapped"}, 400.0, **options)[0]
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    drafts = [[output.meta_info["spec_correct_drafts_histogram"] for output in answers] for answers in (found, expected)]
    assert drafts[0] == drafts[1]
    log = found[0].log
    assert "UNIFIED MEMORY POOL ENABLED" in log
    assert {"kv_write", "prefill_beside", *({"yoco"} if model == "tiny-e2b" else ())} & set(left(log)) == set()
    assert [word for word in ("PREFILLED a layer", "VERIFIED a layer") if word not in log] == []
    assert sum(step.prefilled == ["one"] and step.running == ["long"] for step in joined(log)) >= 2, "a prompt in two chunks"
