"""A step's metadata inside its graph, in engines: the tokens of steps outside graphs, whose metadata SGLang derives, in float32.

A replay runs the captured Python again on the tensors of the capture (``rerun_decode.py``); on a card ``tests/gpu`` replays real graphs.
"""

import re
from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import INTERPRETED, Group, Nursery, Output, without
from tests.harness.inputs.drafting import MTP
from tests.harness.left_to_sglang import left

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(5 + 38 * n))] for n in range(3)]
"""Below, at the edge of and beyond the window of 64 tokens."""
LENGTHS = (6, 3, 11)
"""New tokens: a graph of four requests has one to three, and the last is alone in one of its own."""


def serve(nursery: Nursery, model: str, mtp: bool, instruments: str, *left_out: str) -> list[Output]:
    options: dict[str, Any] = {**MTP, "speculative_draft_model_path": f"{resolve(model)}-assistant"} if mtp else {}
    options |= {"attention_backend": "triton", "cuda_graph_bs_decode": [1, 4], "disable_cuda_graph": False}
    env = {"SGLANG_GEMMA4_ATTENTION": "1", **without(*INTERPRETED, *left_out), "TEST_INSTRUMENTS": instruments}
    group = Group(PROMPTS, [{"max_new_tokens": tokens} for tokens in LENGTHS], logprobs=True)
    return nursery.run(resolve(model), [group], env=env, time_limit=500, **options)[0]


@pytest.mark.parametrize(("model", "mtp"), [("tiny-26b-a4b", True), ("tiny-e2b", True), ("tiny-26b-a4b", False)])
def test_same_tokens(model: str, mtp: bool, interpreting: Nursery) -> None:
    ours = serve(interpreting, model, mtp, "rerun_decode:install")
    stock = serve(interpreting, model, mtp, "", "step_metadata")
    assert {"1", "4"} == set(re.findall(r"REPLAYED (\d+)", ours[0].log))
    assert ours[0].log.count("RECORDED") >= 2, "in the graph of each size"
    assert "step_metadata" not in left(ours[0].log)
    assert "REPLAYED" not in stock[0].log
    for answer, reference in zip(ours, stock, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
        assert answer.meta_info.get("spec_verify_ct") == reference.meta_info.get("spec_verify_ct")


def test_a_replay_without_its_metadata_is_wrong(interpreting: Nursery) -> None:
    """The proof that this would show: nothing derives them, neither in the graph nor before it."""
    ours = serve(interpreting, "tiny-26b-a4b", True, "rerun_decode:stale")
    stock = serve(interpreting, "tiny-26b-a4b", True, "", "step_metadata")
    assert [answer.token_ids for answer in ours] != [answer.token_ids for answer in stock]
