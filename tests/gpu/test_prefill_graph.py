"""Prefill graphs on a card, in bfloat16: a replay of a prompt's own size gives the eager prefill's tokens, padded ones follow transformers.

A padded replay multiplies larger matrices than the eager prefill, which may round elsewhere, so there answers are compared as in
``test_fast_paths``: for how long they follow the float32 oracle. Images, prompts over several chunks and MTP; the package's other kernels
are on by default and inside the captured pieces.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.engine.test_oracle import Case
from tests.gpu.test_gpu import FOLLOWED_SLACK, agreement, case_of, run_case
from tests.harness.engine_fork import Group, without
from tests.harness.inputs.drafting import MTP
from tests.harness.left_to_sglang import left
from tests.harness.oracles.reference import text_prompts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

FAMILIES = ("tiny-26b-a4b", "tiny-e2b")
LENGTHS = [5, 37, 80, 150, 640]
CAPTURE = {"disable_prefill_cuda_graph": False}
ON = {"SGLANG_GEMMA4_PREFILL_GRAPH": "1"}
SAME_KERNELS = {**ON, **without("yoco_graph")}
"""The layers that share KV are launched as an eager prefill launches them: their own graphs may split keys otherwise."""
CHUNKS = {"chunked_prefill_size": 512}


@dataclass
class OneByOne(Case):
    """Prompts sent one after the other, so that each is a batch of its own length."""

    def groups(self) -> list[Group]:
        return [Group([one], {"max_new_tokens": 24}, logprobs=True) for one in text_prompts(self.model.name, LENGTHS)]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folders = [tmp_path_factory.mktemp(family) for family in FAMILIES]
    with ThreadPoolExecutor(len(FAMILIES)) as pool:
        return dict(zip(FAMILIES, pool.map(case_of, FAMILIES, folders), strict=True))


@pytest.fixture(scope="module")
def answers(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[list[dict[str, Any]], str]]:
    """By family and arm: the answers and the engine's log; all engines at once."""
    base = tmp_path_factory.mktemp("engines")
    exact: dict[str, Any] = {"disable_radix_cache": True}
    arms: dict[str, tuple[bool, dict[str, str], dict[str, Any]]] = {
        "exact eager": (True, {}, exact),
        "exact graph": (True, SAME_KERNELS, {**exact, **CAPTURE, "cuda_graph_bs_prefill": LENGTHS}),
        "eager": (False, {}, CHUNKS),
        "eager mtp": (False, {}, {**CHUNKS, **MTP}),
        "graph": (False, ON, {**CHUNKS, **CAPTURE}),
        "graph mtp": (False, ON, {**CHUNKS, **CAPTURE, **MTP}),
    }

    def one(key: tuple[str, str]) -> tuple[list[dict[str, Any]], str]:
        family, arm = key
        alone, env, engine = arms[arm]
        case, name = cases[family], f"{family}-{arm.replace(' ', '-')}"
        if "mtp" in arm:
            engine = {**engine, "speculative_draft_model_path": f"{case.model}-assistant"}
        found = run_case(OneByOne(case.model, [], []) if alone else case, base, name, env, **engine)
        return found, (base / f"{name}.log").read_text()

    keys = [(family, arm) for family in FAMILIES for arm in arms]
    with ThreadPoolExecutor(len(keys)) as pool:
        return dict(zip(keys, pool.map(one, keys), strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_replay_of_its_own_size_gives_the_eager_tokens(family: str, answers: dict[tuple[str, str], Any]) -> None:
    eager, graph = (answers[family, f"exact {arm}"][0] for arm in ("eager", "graph"))
    for length, a, b in zip(LENGTHS, eager, graph, strict=True):
        assert b["token_ids"] == a["token_ids"], length
        assert b["logprobs"] == pytest.approx(a["logprobs"], abs=0.02), length


@pytest.mark.parametrize("arm", ["graph", "graph mtp"])
@pytest.mark.parametrize("family", FAMILIES)
def test_padded_replays_follow_transformers_as_long(family: str, arm: str, cases: dict[str, Case], answers: dict[Any, Any]) -> None:
    """Beside eager prefills of the same decoding: a verify step's matrices round elsewhere than a plain one's by themselves."""
    beside = "eager mtp" if "mtp" in arm else "eager"
    eager, graph = (agreement(answers[family, name][0], cases[family].oracle) for name in (beside, arm))
    print(f"{family} {arm}: follows for {graph[0]:.3f} of the tokens (eager {eager[0]:.3f}), error {graph[1]:.4f} ({eager[1]:.4f})")
    assert graph[0] >= eager[0] - FOLLOWED_SLACK / 2
    assert graph[1] <= eager[1] * 1.2


@pytest.mark.parametrize("family", FAMILIES)
def test_prefills_ran_in_graphs_and_what_they_cost_is_in_the_log(family: str, answers: dict[tuple[str, str], Any]) -> None:
    log = answers[family, "graph"][1]
    told = re.findall(
        r"sglang-gemma4: (7 prefill graphs took [\d.]+ s and hold -?[\d.]+ GiB), for 8, 16, 32, 64, 128, 256, 512 tokens", log
    )
    of_card = re.findall(r"Capture target prefill CUDA graph end. elapsed=[\d.]+ s, mem usage=-?[\d.]+ GB", log)
    batches = re.findall(r"Prefill batch.*cuda graph: (True|False)", log)
    print(f"{family}: {told}; {of_card}; {batches.count('True')} of {len(batches)} prefills replayed")
    assert (len(told), len(of_card)) == (1, 1)
    assert "prefill_graph" not in left(log)
    assert batches.count("True") > len(batches) // 2
    for arm in ("exact eager", "eager"):
        assert "Prefill batch" in answers[family, arm][1]
        assert not re.findall(r"Prefill batch.*cuda graph: True", answers[family, arm][1])
