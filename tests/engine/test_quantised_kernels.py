"""fp8 and 4-bit checkpoints through our kernels, interpreted, in float32: the tokens of the same engines without them."""

from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.tiny import checkpoints
from tests.engine.engine_fork import Group, Nursery, Output, without
from tests.engine.test_oracle import MTP

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(6 + 20 * n))] for n in range(3)]
"""6, 26 and 46 tokens: the prefill is for SGLang's products and our grouped experts, the steps for ours."""
SHORT = [[2, *((11 * i) % 700 + 300 for i in range(25))]]
"""A prefill for grouped experts where the others are for those of a chunk."""
LAYERS = 6
OURS = ("four_bit_linear", "few_row_linear", "few_token_experts", "grouped_experts", "prefill_experts", "router_choice")


def serve(nursery: Nursery, folder: Path, name: str, ours: bool, form: str = "fp8-dynamic", more: str = "") -> list[Output]:
    if not folder.exists():
        checkpoints.write(name, str(folder), quantised=form)
    options: dict[str, Any] = {**MTP, "speculative_draft_model_path": f"{folder}-assistant"}
    env = {
        **without("qkv_rope", "kv_write", "draft_argmax", *([] if ours else OURS)),
        "SGLANG_GEMMA4_FEW_ROW_LINEAR": "1",
        "SGLANG_GEMMA4_FOUR_BIT_ROWS": "16",
        "TEST_SABOTAGE": f"quantised_layers:install expert_counter:install{more}",
    }
    sampling = {"max_new_tokens": 6 if more else 12}
    groups = [Group(prompts, sampling, logprobs=True) for prompts in ([PROMPTS, SHORT] if more else [PROMPTS])]
    return [answer for group in nursery.run(folder, groups, env=env, time_limit=500, **options) for answer in group]


def test_same_tokens_as_dequantised(interpreting: Nursery, tmp_path: Path) -> None:
    ours, plain = (serve(interpreting, tmp_path / "model", "tiny-26b-a4b", each) for each in (True, False))
    log = ours[0].log
    assert "FP8 ROWS, gated." in log
    assert "FP8 ROWS, plain." in log
    assert log.count("EXPERTS by few_token_experts") == LAYERS
    assert log.count("over the routing's blocks") == LAYERS
    assert log.count("A ROUTER chose") == LAYERS
    assert "few_row_linear declined" not in log
    assert "SGLang's kernels compute the experts" not in log
    assert "FP8 ROWS" not in plain[0].log
    assert "EXPERTS by" not in plain[0].log
    for answer, reference in zip(ours, plain, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"]


def test_four_bit_experts(interpreting: Nursery, tmp_path: Path) -> None:
    """The longest prompt's weights are written out, in memory that six layers share."""
    more = " expert_counter:prefill_of_groups_from_forty_tokens"
    ours, plain = (serve(interpreting, tmp_path / "model", "tiny-26b-a4b", each, "w4a16-g32", more) for each in (True, False))
    log = ours[0].log
    assert log.count("EXPERTS by prefill_experts") == LAYERS
    assert log.count("A ROOM of ") == 1
    for said in ("4-BIT ROWS, gated.", "4-BIT ROWS, plain.", "A WEIGHT written out."):
        assert said in log
        assert said not in plain[0].log
    assert "four_bit_linear declined" not in log
    assert "few_row_linear declined" not in log
    assert log.count("EXPERTS by few_token_experts") == log.count("A ROUTER chose") == LAYERS
    assert log.count("EXPERTS by grouped_experts") == LAYERS
    assert "SGLang's kernels compute the experts" not in log
    assert "EXPERTS by" not in plain[0].log
    for answer, reference in zip(ours, plain, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"]


@pytest.mark.parametrize(("form", "said"), [("fp8-dynamic", "FP8"), ("w4a16-g32", "4-BIT")])
def test_layers_that_share_kv(interpreting: Nursery, tmp_path: Path, form: str, said: str) -> None:
    """E2B's project queries only, by a part of a weight."""
    ours, plain = (serve(interpreting, tmp_path / "model", "tiny-e2b", each, form) for each in (True, False))
    assert f"{said} ROWS, plain." in ours[0].log
    assert "shared_query" not in "".join(line for line in ours[0].log.splitlines() if "declined" in line or "instead" in line)
    for answer, reference in zip(ours, plain, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
