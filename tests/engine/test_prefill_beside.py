"""Prompts prefilled in one forward with decode or verify rows: tokens are those without, and the forwards really were joined.

The requests are those of ``test_mtp_lifecycle``, with SGLang's pool checks fatal in every step and when idle.
"""

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.patching import switches
from sglang_gemma4.tiny import images
from tests.engine.test_everything_on import DECLINED, FASTER
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs import mtp_cases
from tests.harness.inputs.mtp_cases import MTP, greedy, timed
from tests.harness.left_to_sglang import left
from tests.harness.oracles.reference import CHECKPOINTS, text_prompts

SWITCH = "SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY"
ENGINE = {**mtp_cases.ENGINE, "enable_mixed_chunk": False}
INT8 = "int8_per_token_head"
Answers = dict[str, list[Output]]


@dataclass
class Joined:
    """One forward of two batches."""

    prefilled: list[str]
    running: list[str]
    rows: list[int]
    heads: int


def joined(log: str) -> list[Joined]:
    return [Joined(**json.loads(line)) for line in re.findall(r"BESIDE (\{.*\})", log)]


def serve(
    nursery: Nursery,
    groups: dict[str, Group],
    switch: str,
    instruments: str,
    model: str = mtp_cases.MODEL,
    most: str = "4096",
    **engine: Any,
) -> Answers:
    """With ``most`` prompt tokens beside running requests, so that what is joined depends on no time; "" goes by a made-up card's."""
    env = {"TEST_INSTRUMENTS": f"beside_trace:{instruments}", SWITCH: switch, switches.BESIDE_TOKENS: most, switches.BESIDE_GAP: "2"}
    env[switches.WITHOUT] = "card_clock"  # the trace is the clock
    if engine.get("attention_backend") == "triton":
        env |= {"SGLANG_GEMMA4_ATTENTION": "1", "SGLANG_GEMMA4_MEDIA_FIXES": "1"}
    found = nursery.run(CHECKPOINTS / model, list(groups.values()), env=env, time_limit=400.0, **{**ENGINE, **engine})
    return dict(zip(groups, found, strict=True))


@pytest.fixture(scope="module")
def apart(nursery: Nursery) -> Answers:
    """Plain decoding, prefill and decode in turn."""
    found = serve(nursery, mtp_cases.groups(), "0", "watch")
    assert not joined(found["together"][0].log)
    return found


LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("watch", {}),
    "plain-overlapped": ("overlapped", {"disable_overlap_schedule": False}),
    "mtp": ("watch", MTP),
    "mtp-overlapped": ("overlapped", {**MTP, "disable_overlap_schedule": False}),
    "mtp-adaptive": ("overlapped", {**MTP, "disable_overlap_schedule": False, "speculative_adaptive": True}),
}


@pytest.fixture(scope="module", params=list(LOOPS))
def beside(request: pytest.FixtureRequest, nursery: Nursery) -> Answers:
    instruments, engine = LOOPS[request.param]
    return serve(nursery, mtp_cases.groups(), "1", instruments, **engine)


EXACT = [name for name in mtp_cases.groups() if name not in ("aborted", "unaborted")]


def test_no_more_prompt_tokens_beside_running_requests_than_wanted(nursery: Nursery) -> None:
    """Chunks are 64 while nobody runs, then 24; two short prompts go in one step."""
    texts = text_prompts("tiny-31b", [100, 80, 10, 11])
    asked: list[dict[str, Any]] = [
        {"rid": "long"},
        {"rid": "one", "after": ["long", 3]},
        *({"rid": f"gate2.short-{n}", "after": ["one", -1]} for n in range(2)),
    ]
    groups = {"short": timed(texts, [greedy(tokens) for tokens in (240, 4, 4, 4)], asked)}  # long enough for a busy machine
    draft = {**MTP, "speculative_draft_model_path": CHECKPOINTS / "tiny-31b-assistant", "max_total_tokens": 1200}
    found, expected = (serve(nursery, groups, on, "watch", "tiny-31b", most="24", **draft)["short"] for on in "10")
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    together = joined(found[0].log)
    assert [step.rows[0] for step in together if step.prefilled == ["one"]] == [24, 24, 24, 8]
    assert [sorted(step.prefilled) for step in together if len(step.prefilled) > 1] == [["gate2.short-0", "gate2.short-1"]]
    assert "#new-token: 64" in found[0].log


LATE = 11


@pytest.fixture(scope="module")
def late(nursery: Nursery) -> Callable[[str, str], list[Output]]:
    """Prompts that come one after another while a long answer is decoded, by switch and instruments."""
    texts = text_prompts("tiny-31b", [20, *[700 + 9 * number for number in range(LATE)]])
    asked: list[dict[str, Any]] = [{"rid": "long"}]
    asked += [{"rid": f"late-{n}", "after": ["long", 6] if n == 0 else [f"late-{n - 1}", -1]} for n in range(LATE)]
    groups = {"late": timed(texts, [greedy(420), *[greedy(4)] * LATE], asked)}
    options: dict[str, Any] = {
        **MTP, "speculative_draft_model_path": CHECKPOINTS / "tiny-31b-assistant", "max_total_tokens": 2000, "chunked_prefill_size": 2048,
    }  # fmt: skip
    return functools.cache(lambda switch, instruments: serve(nursery, groups, switch, instruments, "tiny-31b", most="", **options)["late"])


def test_chunks_follow_measured_times(late: Callable[[str, str], list[Output]]) -> None:
    """On a card whose plain step takes 10 ms and whose joined one 16, or 100 microseconds a row: 192 rows are within two plain steps."""
    found, expected = late("1", "timed"), late("0", "watch")
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    together = joined(found[0].log)
    chunks = [[step.rows[0] for step in together if step.prefilled == [f"late-{number}"]] for number in range(LATE)]
    print(chunks)
    assert chunks[0][:2] == [252, 252], "tried"
    rows = [sum(step.rows) for step in together if step.prefilled == [f"late-{LATE - 1}"]]
    assert rows[0] in (188, 192), "of the running requests one may end between the plan and the step, with its 4 rows"
    assert rows[1:4] == [192, 192, 192], "with 4 rows of each running request"


def test_a_decode_step_follows_each_prefill_in_turn(late: Callable[[str, str], list[Output]]) -> None:
    """On a card that is faster so; without it running requests wait for all chunks of all prompts that wait."""
    found, expected = late("1", "slow"), late("0", "watch")
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    steps = [tuple(json.loads(line)) for line in re.findall(r"STEP (\[.*\])", found[0].log)]
    first, *rest = [number for number, (tokens, running) in enumerate(steps) if tokens and not running]
    assert first == 0, "the long answer's own prompt"
    assert len(rest) > LATE, "some prompts go in more than one chunk"
    for number in rest:
        assert number + 1 == len(steps) or steps[number + 1][1] > 0, f"{steps[number : number + 2]} follow each other"
    assert steps[rest[-1]][0] == 700 + 9 * (LATE - 1), "a whole prompt and a plain step take 30 ms, fewer tokens beside one more than that"


def test_tokens_are_those_of_steps_in_turn(beside: Answers, apart: Answers) -> None:
    for name in EXACT:
        found, expected = ([(output.token_ids, output.text) for output in answers[name]] for answers in (beside, apart))
        assert found == expected, name


def test_chunks_of_a_prompt_go_beside_running_requests(beside: Answers) -> None:
    together = joined(beside["chunked"][0].log)
    chunks = [step for step in together if "chunk-1" in step.running and {"chunk-2", "chunk-3"} & set(step.prefilled)]
    assert len(chunks) >= 4, "prompts of 201 and 90 tokens in chunks of 64"
    assert all(step.rows[0] <= 64 and step.rows[1] % len(step.running) == 0 for step in together)
    assert {step.heads for step in together} == {1}


def test_requests_end_and_are_aborted_beside_a_prefill(beside: Answers, apart: Answers) -> None:
    for stays in (0, 2, 4):
        assert beside["aborted"][stays].token_ids == apart["aborted"][stays].token_ids
    whole, cut = apart["unaborted"][0].token_ids, beside["aborted"][1].token_ids
    assert len(cut) >= 9
    assert cut == whole[: len(cut)]
    log = beside["aborted"][0].log
    assert re.search(r"MIDCHUNK midchunk-5 prefilled [1-9]", log)
    assert any("midchunk-5" in step.prefilled for step in joined(log))
    assert any("life-f" in step.prefilled for step in joined(log)), "ends at its prefill"


def test_logprobs_are_those_of_steps_in_turn(beside: Answers, apart: Answers) -> None:
    for found, expected in zip(beside["logprobs"], apart["logprobs"], strict=True):
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_a_failed_forward_is_said_and_each_batch_runs_alone(nursery: Nursery, apart: Answers) -> None:
    groups = {name: mtp_cases.groups()[name] for name in ("chunked", "coming_and_going")}
    found = serve(nursery, groups, "1", "failing", **MTP, disable_overlap_schedule=False)
    for name, answers in found.items():
        assert [output.token_ids for output in answers] == [output.token_ids for output in apart[name]]
    log = found["chunked"][0].log
    assert len(joined(log)) == 2
    said = left(log)["prefill_beside"].splitlines()
    assert said.count("a mixed batch failed, RuntimeError: no kernel image for this shape") == 1


FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "26b": ("tiny-26b-a4b", "watch", {}),
    "26b-overlapped": ("tiny-26b-a4b", "overlapped", {"disable_overlap_schedule": False}),
    "31b": ("tiny-31b", "overlapped", {"disable_overlap_schedule": False}),
    "e2b-retracted": ("tiny-e2b", "retracting", {"disable_overlap_schedule": False}),
}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_accept_length_and_radix_hits(family: str, nursery: Nursery) -> None:
    """Two prompts come while a request is decoded, one again with more text: tokens and drafts accepted are those of steps in turn."""
    model, instruments, engine = FAMILIES[family]
    texts = text_prompts(model, [20, 201, 90, 33])
    asked: list[dict[str, Any]] = [
        {"rid": "long"},
        *({"rid": rid, "after": ["long", 4]} for rid in ("one", "two")),
        {"rid": "again", "after": ["one", -1]},
    ]
    prompts = [*texts[:3], [*texts[1], *texts[3]]]
    groups = {"radix": timed(prompts, [greedy(tokens) for tokens in (120, 9, 30, 20)], asked)}
    draft = {**MTP, "speculative_draft_model_path": CHECKPOINTS / f"{model}-assistant", "max_total_tokens": 1200}
    found, expected = (serve(nursery, groups, switch, instruments, model, **draft, **engine)["radix"] for switch in "10")
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    together = joined(found[0].log)
    assert sum("one" in step.prefilled and "long" in step.running for step in together) >= 3, "chunks of 64"
    assert any("again" in step.prefilled and "long" in step.running and step.rows[0] < 100 for step in together), "the rest of a prompt"
    assert found[3].meta_info["cached_tokens"] >= 200
    assert ("yoco" in left(found[0].log)) is (model != "tiny-e2b"), "shared layers see the rows that are read, beside others too"
    if instruments != "retracting":  # a request that is prefilled again drafts from another place
        drafts = [[output.meta_info["spec_correct_drafts_histogram"] for output in answers] for answers in (found, expected)]
        assert drafts[0] == drafts[1]


@pytest.mark.parametrize(
    ("family", "unified"),
    [("tiny-26b-a4b", False), ("tiny-e2b", False), ("tiny-26b-a4b", True), ("tiny-e2b", True)],
    ids=["tiny-26b-a4b", "tiny-e2b", "tiny-26b-a4b-unified", "tiny-e2b-unified"],
)
def test_joined_forwards_replay_prefill_graphs(family: str, unified: bool, nursery: Nursery, tmp_path: Path) -> None:
    """Recorded and replayed operator by operator (``recorded_graphs``); the last prompt is beside more rows than the largest graph has."""
    images.draw(0, "red").resize((96, 96)).save(tmp_path / "red.png")
    texts = text_prompts(family, [20, 75, 33, 40, 9])
    prompts: list[Any] = [*texts, "<bos>What is this <|image|> called?"]
    asked: list[dict[str, Any]] = [{"rid": "long"}, *({"rid": rid, "after": ["long", 4]} for rid in ("one", "two"))]
    asked += [{"rid": "again", "after": ["one", -1]}, {"rid": "short", "after": ["again", -1]}]
    asked += [{"rid": "image", "after": ["short", -1], "images": [str(tmp_path / "red.png")]}]
    groups = {"graphs": timed(prompts, [greedy(tokens) for tokens in (200, 9, 12, 9, 3, 9)], asked)}
    draft: dict[str, Any] = {**MTP, "speculative_draft_model_path": CHECKPOINTS / f"{family}-assistant", "max_total_tokens": 1200}
    draft |= {"disable_overlap_schedule": False, "disable_cuda_graph": False, "disable_decode_cuda_graph": True}
    draft |= {"cuda_graph_bs_prefill": [8, 16, 32, 48, 64], "chunked_prefill_size": 64, "enable_unified_memory": unified}
    instruments = "overlapped recorded_graphs:install"
    found, expected = (serve(nursery, groups, on, instruments, family, **draft)["graphs"] for on in "10")
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    drafts = [[output.meta_info["spec_correct_drafts_histogram"] for output in answers] for answers in (found, expected)]
    assert drafts[0] == drafts[1]
    log = found[0].log
    assert ("UNIFIED MEMORY POOL ENABLED" in log) is unified
    together, replays = joined(log), [int(rows) for rows in re.findall(r"^REPLAYED \d+ for (\d+)$", log, re.MULTILINE)]
    small = [sum(step.rows) for step in together if sum(step.rows) <= 64]
    assert {rid for step in together for rid in step.prefilled} == {"one", "two", "again", "short", "image"}
    assert len(small) >= 4
    assert not set(small) - set(replays), "each is replayed"
    large = any(sum(step.rows) > 64 for step in together)
    assert ("a mixed batch is launched kernel by kernel: more tokens than the 64 of the largest prefill graph" in log) is large
    assert ("yoco" in left(log)) is (family != "tiny-e2b")


@pytest.mark.parametrize(
    ("family", "cache"), [("tiny-26b-a4b", "auto"), ("tiny-e2b", "auto"), ("tiny-26b-a4b", INT8)], ids=["26b", "e2b", "26b-int8"]
)
def test_images_go_beside_running_requests_whole(family: str, cache: str, nursery: Nursery, interpreting: Nursery, tmp_path: Path) -> None:
    """26B-A4B's images attend both ways, E2B's do not; chunks of 64 would cut the second. The long answer
    outlasts their pixels on a busy machine. An int8 cache is triton's, interpreted."""
    paths = [str(tmp_path / f"{number}.png") for number in range(2)]
    for number, (colour, size) in enumerate((("red", (96, 96)), ("blue", (400, 400)))):
        images.draw(number, colour).resize(size).save(paths[number])
    prompts = ["The ruler of the land went along the river", "<bos>What is this <|image|> called?", "<bos>Is <|image|> or <|image|> red?"]
    asked: list[dict[str, Any]] = [
        {"rid": "long"},
        {"rid": "one", "after": ["long", 4], "images": paths[:1]},
        {"rid": "two", "after": ["one", -1], "images": paths},
    ]
    groups = {"images": timed(prompts, [greedy(40 if cache == INT8 else 400), greedy(9), greedy(9)], asked)}
    draft: dict[str, Any] = {**MTP, "speculative_draft_model_path": CHECKPOINTS / f"{family}-assistant", "max_total_tokens": 1200}
    draft["disable_overlap_schedule"] = False
    if cache == INT8:
        draft |= {"attention_backend": "triton", "kv_cache_dtype": cache}
    engines = interpreting if cache == INT8 else nursery
    found, expected = (serve(engines, groups, on, "overlapped", family, **draft)["images"] for on in "10")
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    together = joined(found[0].log)
    assert {rid for step in together for rid in step.prefilled} == {"one", "two"}
    assert "prefill_beside" not in left(found[0].log)


@pytest.mark.parametrize(
    ("family", "cache"),
    [("tiny-26b-a4b", "auto"), ("tiny-e2b", "auto"), ("tiny-26b-a4b", INT8), ("tiny-e2b", INT8)],
    ids=["26b", "e2b", "26b-int8", "e2b-int8"],
)
def test_every_faster_path_on_triton(family: str, cache: str, interpreting: Nursery, nursery: Nursery) -> None:
    """Interpreted, in float32: each kind of row by its own kernel, keys written early, shared layers over the rows that are read.

    E2B, whose layers are many, drafts one token and has short prompts: that is all the interpreter has time for.
    """
    few = family == "tiny-e2b"
    lengths, chunk, most = ([5, 14], 8, 8) if few else ([10, 44], 24, 14)
    texts = text_prompts(family, lengths)
    groups = {"two": timed(texts, [greedy(most), greedy(2)], [{"rid": "long"}, {"rid": "one", "after": ["long", 1]}])}
    draft: dict[str, Any] = {**MTP, "speculative_draft_model_path": CHECKPOINTS / f"{family}-assistant"}
    if few:
        draft |= {"speculative_num_steps": 1, "speculative_num_draft_tokens": 2}
    overlap: dict[str, Any] = {"disable_overlap_schedule": few}
    instruments = "watch" if few else "overlapped"
    expected = serve(nursery, groups, "0", instruments, family, **draft, **overlap, kv_cache_dtype=cache)["two"]
    env = {f"SGLANG_GEMMA4_{name}": "1" for name in FASTER} | {SWITCH: "1", switches.BESIDE_TOKENS: "4096"}
    env["TEST_INSTRUMENTS"] = f"kernel_counters:attention beside_trace:{instruments}"
    options = {**ENGINE, **draft, **overlap, "attention_backend": "triton", "chunked_prefill_size": chunk, "kv_cache_dtype": cache}
    found = interpreting.run(CHECKPOINTS / family, list(groups.values()), env, 600.0, **options)[0]
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    log = found[0].log
    assert sum("one" in step.prefilled and "long" in step.running for step in joined(log)) >= 2, "a prompt in two chunks"
    if cache == INT8:
        assert "prefill_beside" not in left(log)
        return
    assert "VERIFIED a layer" in log
    assert "PREFILLED a layer" in log
    assert set(left(log)) == DECLINED[family]
