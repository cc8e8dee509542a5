"""A running request holds one window: where stock retracts for want of sliding tokens, nobody is retracted, and tokens are the same.

Real engines of a model with a window of 64 tokens and pools too small for two windows a request, with SGLang's pool checks fatal in every
step and when idle. Answers are compared with those of an engine whose pools are never short.
"""

import random
import re
from functools import cache
from typing import Any

import pytest

from sglang_gemma4.patching import switches
from tests.harness.engine_fork import Group, Nursery, Output, without
from tests.harness.inputs import mtp_cases
from tests.harness.inputs.mtp_cases import MTP, NO_END, greedy, timed
from tests.harness.left_to_sglang import left
from tests.harness.oracles.reference import CHECKPOINTS
from tests.harness.programs import admission_loads

MODEL = "tiny-26b-a4b"
WINDOW = 63  # keys before its own that a query sees
ENGINE: dict[str, Any] = {"chunked_prefill_size": 64, "schedule_conservativeness": 0.01, "max_running_requests": 8}
LARGE = {**ENGINE, "max_total_tokens": 6000, "swa_full_tokens_ratio": 0.9}
SLIDING = {1: 789, 16: 1088}  # tokens for eight requests by page size: some 1.5 windows each
DRAFT = {**MTP, "speculative_draft_model_path": CHECKPOINTS / f"{MODEL}-assistant"}
BESIDE = {"SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY": "1", switches.BESIDE_TOKENS: "4096"}
OVERLAPPED = {"disable_overlap_schedule": False}
LOOPS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "plain": ("mtp_trace:watch", {}, {}),
    "plain-overlapped": ("loop_modes:overlapping", OVERLAPPED, {}),
    "mtp": ("mtp_trace:watch", DRAFT, {}),
    "mtp-overlapped": ("loop_modes:overlapping", {**DRAFT, **OVERLAPPED}, {}),
    "mtp-beside": ("loop_modes:overlapping", {**DRAFT, **OVERLAPPED}, BESIDE),
    "mtp-retracted": ("loop_modes:overlapped", {**DRAFT, **OVERLAPPED}, {}),
    "plain-retracted": ("loop_modes:retracting", {}, {}),
}


def prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [2, *(rng.randrange(300, 1000) for _ in range(length - 1))]


def endless(tokens: int, **more: Any) -> dict[str, Any]:
    """With ``ignore_eos`` SGLang would reserve the whole answer."""
    return greedy(tokens, ignore_eos=False, logit_bias=NO_END, **more)


def groups() -> dict[str, Group]:
    """Requests by what they are about. Each group fills the sliding pool."""
    many = [prompt(length, length) for length in (100, 101, 102, 103, 104, 105, 130, 200)]
    lengths = [prompt(length, length) for length in (20, WINDOW - 16, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 16, 128, 300)]
    names = mtp_cases.named("some", 8)
    return {
        "short answers": Group(many, endless(52)),
        "long answers": Group(lengths, endless(150)),
        "twins": Group([many[6]] * 2 + [many[7]] * 2 + many[:4], endless(70)),
        "four of one": Group(lengths[-2:], endless(70, n=4)),
        "turns": timed(
            [*many[:6], many[1] + prompt(30, 7), many[2] + prompt(9, 8)],
            [endless(90)] * 6 + [endless(60)] * 2,
            [*names[:6], {"rid": "turn-1", "after": ["some-1", 12]}, {"rid": "turn-2", "after": ["some-2", 25]}],
        ),
        "aborted": timed(
            many, [endless(110)] * 8, [{**one, "abort_at": 9 * number} if number % 3 == 1 else one for number, one in enumerate(names)]
        ),
        "logprobs": Group(many, endless(60), logprobs=True),
        "grammar": mtp_cases.grammar(),
    }


def serve(
    nursery: Nursery, instruments: str, engine: dict[str, Any], env: dict[str, str], names: tuple[str, ...] = ()
) -> dict[str, list[Output]]:
    asked = {name: group for name, group in groups().items() if not names or name in names}
    env = {"TEST_INSTRUMENTS": f"{instruments} window_watch:watch", "SGLANG_SWA_EVICTION_INTERVAL": "8", **env}
    found = nursery.run(CHECKPOINTS / MODEL, list(asked.values()), env=env, time_limit=400.0, **engine)
    return dict(zip(asked, found, strict=True))


@cache
def large(nursery: Nursery, names: tuple[str, ...] = ()) -> dict[str, list[Output]]:
    """Plain decoding with room for all, as stock does it."""
    return serve(nursery, *LOOPS["plain"][:1], LARGE, without("own_window"), names)


@cache
def small(nursery: Nursery, loop: str, page: int, stock: bool, names: tuple[str, ...] = ()) -> dict[str, list[Output]]:
    instruments, engine, env = LOOPS[loop]
    engine = {**LARGE, "swa_full_tokens_ratio": (SLIDING[page] + page // 2) / 6000, "page_size": page, **engine}
    return serve(nursery, instruments, engine, {**env, **(without("own_window") if stock else {})}, names)


def retractions(answers: dict[str, list[Output]], name: str) -> int:
    return sum(output.meta_info["num_retractions"] for output in answers[name])


SOME = ("short answers", "twins", "turns", "aborted", "logprobs")
"""All groups but those of the longest answers, of four answers and of a grammar, which take half of the time."""
CASES: list[tuple[str, int, tuple[str, ...]]] = [("mtp-overlapped", 1, SOME)]
CASES += [(loop, page, ()) for loop in ("plain", "plain-overlapped", "mtp", "mtp-overlapped", "mtp-beside") for page in (1, 16)]


def tokens_are_equal(found: dict[str, list[Output]], reference: dict[str, list[Output]]) -> None:
    for name in set(found) - {"aborted"}:
        assert [output.token_ids for output in found[name]] == [output.token_ids for output in reference[name]], name
    for one, other in zip(found["logprobs"], reference["logprobs"], strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    for one, whole in zip(found["aborted"], reference["short answers"], strict=True):
        assert one.token_ids[:52] == whole.token_ids[: len(one.token_ids)]
    assert any(output.meta_info["finish_reason"]["type"] == "abort" for output in found["aborted"])


@pytest.mark.parametrize(("loop", "page", "names"), CASES, ids=["some", *(f"{loop}-{page}" for loop, page, _ in CASES[1:])])
def test_nobody_is_retracted_and_tokens_are_those_of_a_large_pool(loop: str, page: int, names: tuple[str, ...], nursery: Nursery) -> None:
    """Turns of requests that still run share their prompts' windows, which nobody can take: there SGLang may retract."""
    found = small(nursery, loop, page, False, names)
    tokens_are_equal(found, large(nursery, names))
    assert {name: retractions(found, name) for name in found if name != "turns"} == dict.fromkeys(set(found) - {"turns"}, 0)
    log = found["turns"][0].log
    assert re.search(r"^TAKEN", log, re.MULTILINE)
    assert re.search(r"^UNLOCKED", log, re.MULTILINE)
    assert "sliding tokens are short: running requests took their prompts' last windows out of the radix tree 1 times" in log
    stock = small(nursery, loop, page, True, ("short answers",))["short answers"]
    assert [output.token_ids for output in stock] == [output.token_ids for output in large(nursery, names)["short answers"]]
    assert "KV cache pool is full" in stock[0].log
    assert retractions({"stock": stock}, "stock") >= 1


@pytest.mark.parametrize("loop", ["plain-retracted", "mtp-retracted"])
def test_requests_that_took_back_are_retracted(loop: str, nursery: Nursery) -> None:
    found = small(nursery, loop, 1, stock=False)
    tokens_are_equal(found, large(nursery))
    taken = set(re.findall(r"^TAKEN (\S+)", found["turns"][0].log, re.MULTILINE))
    assert taken
    assert sum(retractions(found, name) for name in found) > 10


@pytest.mark.parametrize("draft", [{}, DRAFT], ids=["plain", "mtp"])
def test_prefixes_are_hit_as_in_stock_where_memory_allows(draft: dict[str, Any], nursery: Nursery) -> None:
    """The same prompts again, then turns with the answers in them."""
    prompts = [prompt(length, length) for length in (20, WINDOW, WINDOW + 1, 130, 300)]
    found, expected = (
        nursery.run(
            CHECKPOINTS / MODEL,
            [Group(prompts, greedy(80)), Group(prompts, greedy(8)), Group([[*one, *prompt(30, 5)] for one in prompts], greedy(8))],
            env={"TEST_INSTRUMENTS": "window_watch:watch", **env},
            **{**LARGE, **draft},
        )
        for env in ({}, without("own_window"))
    )
    for answers, due in zip(found, expected, strict=True):
        assert [output.token_ids for output in answers] == [output.token_ids for output in due]
        assert [output.meta_info["cached_tokens"] for output in answers] == [output.meta_info["cached_tokens"] for output in due]
    assert min(output.meta_info["cached_tokens"] for output in found[2]) > 0
    assert len(re.findall(r"^UNLOCKED", found[0][0].log, re.MULTILINE)) == len(prompts)
    assert not re.search(r"^TAKEN|took their prompts' last windows", found[0][0].log, re.MULTILINE)


def test_prompts_that_branch_off_where_windows_are_gone(nursery: Nursery) -> None:
    """The second load's prompts begin as the first one's did; some are in the tree up to there only, with windows that have passed it."""
    loads = [admission_loads.group(admission_loads.LOADS[name]) for name in ("1000/500", "mixed")]
    small, large = (admission_loads.run(nursery, False, share, "one window", loads)[0] for share in (0.3, 0))
    for found, expected in zip(small, large, strict=True):
        assert [output.token_ids for output in found] == [output.token_ids for output in expected]


DECLINES: dict[str, tuple[dict[str, Any], str, str]] = {
    "sessions": ({"enable_streaming_session": True}, "", "--enable-streaming-session: a session's slot holds the lock of its turns"),
}


@pytest.mark.parametrize("case", list(DECLINES))
def test_what_it_leaves_to_sglang_is_said(case: str, nursery: Nursery) -> None:
    given, instruments, reason = DECLINES[case]
    engine = {**LARGE, "swa_full_tokens_ratio": SLIDING[1] / 6000, **given}
    found = serve(nursery, f"mtp_trace:watch {instruments}", engine, {}, ("short answers",))["short answers"]
    assert [output.token_ids for output in found] == [output.token_ids for output in large(nursery)["short answers"]]
    assert reason in left(found[0].log)["own_window"]
    assert not re.search(r"^(TAKEN|UNLOCKED)", found[0].log, re.MULTILINE)
