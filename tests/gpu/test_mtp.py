"""MTP's draft on a card, overlapped: the same tokens and steps as stock's draft, and nothing in a decode step waits for the device."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from sglang_gemma4.tiny import checkpoints
from tests.engine.test_oracle import Case
from tests.gpu.sync_counter import MARK
from tests.gpu.test_gpu import run_case
from tests.harness.engine_fork import Group, without
from tests.harness.inputs.drafting import MTP

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

FAMILY = "tiny-26b-a4b"
PROMPTS = [[2] + [(11 * i + 37 * n + 3 * n * i) % 700 + 300 for i in range(length - 1)] for n, length in enumerate((50, 90, 20))]
NEW_TOKENS = 96
OFF = ("frozen_chain", "draft_graph", "shared_query", "draft_argmax")
"""The head's kernel adds up in another order than a product: ``test_fast_paths`` is for it, here tokens are equal or not."""
ARMS = {
    "stock's draft": without(*OFF),
    "chain": without(*OFF[1:]),
    "graph": without(*OFF[2:]),
    "all": without("draft_argmax"),
    "v1": {**without(*OFF), "SGLANG_FROZEN_KV_MTP_V2": "0"},
    "past the graphs": without(*OFF[1:]),
    "adaptive": {},
}
ENGINES: dict[str, dict[str, Any]] = {
    "past the graphs": {"cuda_graph_max_bs_decode": len(PROMPTS) - 1},
    "adaptive": {"speculative_adaptive": True},
}


class Three(Case):
    """Three prompts that run together."""

    def __init__(self) -> None:
        super().__init__(checkpoints.SHIPPED / FAMILY, [], [])

    def groups(self) -> list[Group]:
        return [Group(PROMPTS, {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True})]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[dict[str, Any]], str]]:
    """By arm: the answers and the engine's log; all engines at once."""
    base = tmp_path_factory.mktemp("engines")
    draft = {**MTP, "speculative_draft_model_path": f"{checkpoints.SHIPPED / FAMILY}-assistant"}

    def one(name: str) -> tuple[list[dict[str, Any]], str]:
        folder = base / name.replace(" ", "-").replace("'", "")
        folder.mkdir()
        env = {**ARMS[name], "TEST_INSTRUMENTS": "tests.gpu.sync_counter:install"}
        return run_case(Three(), folder, "engine", env, **draft, **ENGINES.get(name, {})), (folder / "engine.log").read_text()

    with ThreadPoolExecutor(len(ARMS)) as pool:
        return dict(zip(ARMS, pool.map(one, ARMS), strict=True))


def syncs(log: str) -> dict[str, Any]:
    (line,) = [line for line in log.splitlines() if MARK in line]
    found: dict[str, Any] = json.loads(line.partition(MARK)[2])
    return found


@pytest.mark.parametrize("arm", ["chain", "graph", "past the graphs", "v1"])
def test_tokens_and_verify_steps_are_those_of_stock_s_draft(arm: str, answers: dict[str, tuple[list[dict[str, Any]], str]]) -> None:
    stock, ours = answers["stock's draft"][0], answers[arm][0]
    assert [one["token_ids"] for one in ours] == [one["token_ids"] for one in stock]
    steps = [[one["meta_info"]["spec_verify_ct"] for one in of] for of in (stock, ours)]
    print(f"{arm}: verify steps {steps}")
    assert steps[0] == steps[1]


def test_queries_only_accept_as_much(answers: dict[str, tuple[list[dict[str, Any]], str]]) -> None:
    """A narrower product may round a draft differently in bfloat16; a step in fifty may move either way, no more."""
    steps = {arm: sum(one["meta_info"]["spec_verify_ct"] for one in answers[arm][0]) for arm in ("chain", "all")}
    print(steps)
    assert steps["all"] <= steps["chain"] * 1.02


def test_stock_s_draft_waits_in_every_step(answers: dict[str, tuple[list[dict[str, Any]], str]]) -> None:
    found = syncs(answers["stock's draft"][1])
    print(found)
    assert sum(found["places"].values()) >= found["steps"]


@pytest.mark.parametrize("arm", ["chain", "graph", "all"])
def test_nothing_in_a_step_waits_for_the_device(arm: str, answers: dict[str, tuple[list[dict[str, Any]], str]]) -> None:
    found = syncs(answers[arm][1])
    print(found)
    assert found["places"] == {}


def test_no_draft_waits_for_the_device_past_the_graphs(answers: dict[str, tuple[list[dict[str, Any]], str]]) -> None:
    """Its metadata are sized by what the host has allocated; what an eager verify of SGLang's waits for is not ours."""
    found = syncs(answers["past the graphs"][1])
    print(found)
    assert not [place for place in found["places"] if "frozen_kv" in place or place.startswith("chain.py")]


def test_the_graph_holds_the_metadata(answers: dict[str, tuple[list[dict[str, Any]], str]]) -> None:
    for arm in ("graph", "all"):
        assert "stays outside its graph" not in answers[arm][1]


def test_an_adaptive_length_goes_through_plain_steps_and_back(answers: dict[str, tuple[list[dict[str, Any]], str]]) -> None:
    """Its plain steps keep on the host what a step with drafts has on the card; their tokens may round otherwise in bfloat16."""
    found, log = answers["adaptive"]
    lengths = {(int(old), int(new)) for old, new in re.findall(r"Switch adaptive runtime state: steps (\d+) -> (\d+)", log)}
    print(lengths)
    assert {new for _, new in lengths} >= {0}
    assert {old for old, _ in lengths} >= {0}
    assert [len(one["token_ids"]) for one in found] == [NEW_TOKENS] * len(PROMPTS)
    stock = answers["stock's draft"][0]
    assert [one["token_ids"][0] for one in found] == [one["token_ids"][0] for one in stock]
