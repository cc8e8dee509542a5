"""Fast prefill (YOCO) on a card, in bfloat16, with and without MTP: answers follow transformers as long, from fewer rows.

SGLang's norm kernels take 16-bit types only, so tokens cannot be asked for exactly; tests/engine/test_fast_prefill.py does in float32.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from sglang_gemma4.tiny import checkpoints
from tests.engine.test_oracle import Case
from tests.gpu.test_gpu import FOLLOWED_SLACK, agreement, case_of, run_case
from tests.harness.engine_fork import without
from tests.harness.inputs.drafting import MTP
from tests.harness.instruments import row_counter
from tests.harness.left_to_sglang import left

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

FAMILY, FIRST_SHARED = "tiny-e2b", 5
DRAFT = {**MTP, "speculative_draft_model_path": f"{checkpoints.SHIPPED / FAMILY}-assistant"}
GRAPHS = {"disable_prefill_cuda_graph": False, "chunked_prefill_size": 64}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"chunked_prefill_size": 64},
    "mtp": DRAFT,
    "graphs": GRAPHS,
    "mtp in graphs": {**GRAPHS, **DRAFT},
    "short part in graphs": GRAPHS,
    "mtp, short part in graphs": {**GRAPHS, **DRAFT},
}
STEPS_SLACK = 0.03
"""Of all verify steps: where an answer goes another way, so do its drafts."""


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return case_of(FAMILY, tmp_path_factory.mktemp(FAMILY))


@pytest.fixture(scope="module")
def answers(case: Case, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[list[dict[str, Any]], str]]:
    """By way and switch: the answers and the engine's log; all engines at once."""
    base = tmp_path_factory.mktemp("engines")

    def one(key: tuple[str, str]) -> tuple[list[dict[str, Any]], str]:
        way, switch = key
        env = {"SGLANG_GEMMA4_YOCO": switch, "TEST_INSTRUMENTS": "tests.harness.instruments.row_counter:install"}
        env["SGLANG_GEMMA4_PREFILL_GRAPH"] = str(int("graphs" in way))
        env |= {} if "short part" in way and switch == "1" else without("yoco_graph")
        name = f"{way}-{switch}".replace(" ", "-").replace(",", "")
        return run_case(case, base, name, env, **WAYS[way]), (base / f"{name}.log").read_text()

    keys = [(way, switch) for way in WAYS for switch in "01"]
    with ThreadPoolExecutor(len(keys)) as pool:
        return dict(zip(keys, pool.map(one, keys), strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_answers_follow_transformers_as_long(way: str, case: Case, answers: dict[tuple[str, str], Any]) -> None:
    stock, ours = (agreement(answers[way, switch][0], case.oracle) for switch in "01")
    print(f"{way}: follows for {ours[0]:.3f} of the tokens (all layers {stock[0]:.3f}), error {ours[1]:.4f} ({stock[1]:.4f})")
    assert ours[0] >= stock[0] - FOLLOWED_SLACK / 2
    assert ours[1] <= stock[1] * 1.2


@pytest.mark.parametrize("way", [way for way in WAYS if "mtp" in way])
def test_drafts_are_accepted_as_often(way: str, answers: dict[tuple[str, str], Any]) -> None:
    stock, ours = (sum(one["meta_info"]["spec_verify_ct"] for one in answers[way, switch][0]) for switch in "01")
    print(f"{ours} verify steps, through all layers {stock}")
    assert ours <= stock * (1 + STEPS_SLACK)


@pytest.mark.parametrize("way", WAYS)
def test_the_sharing_layers_see_one_row_of_a_prompt(way: str, answers: dict[tuple[str, str], Any]) -> None:
    log = answers[way, "1"][1]
    assert not {"yoco", "yoco_graph"} & set(left(log))
    if "short part" in way:
        assert re.search(r"sglang-gemma4: \d graphs of the layers that share KV took [\d.]+ s", log)
        said = [layer for forward in row_counter.prefill_forwards(log) for layer, _, _ in forward.layers]
        assert all(layer < FIRST_SHARED for layer in said), "a replay says nothing of its layers"
        return
    prefills = [forward.layers for forward in row_counter.prefill_forwards(log) if forward.layers]
    # Of a replay only the layers that share KV say something.
    long = [layers for layers in prefills if layers[0][0] == FIRST_SHARED or layers[0][1] > 16]
    assert any(layers[0][0] == FIRST_SHARED for layers in long) is ("graphs" in way)
    # 28 requests at most; the warm-up and a batch of them all have one row each.
    assert all(rows <= 28 and mode == "DECODE" for layers in long for layer, rows, mode in layers if layer >= FIRST_SHARED)
    assert all(rows == layers[0][1] for layers in long for layer, rows, _ in layers if layer < FIRST_SHARED)
