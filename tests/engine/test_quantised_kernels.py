"""fp8 and 4-bit checkpoints through our kernels, interpreted, in float32: the tokens of the same engines without them."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.tiny import checkpoints
from sglang_gemma4.tiny.quantisation import FORMATS
from tests.engine.test_two_ranks import RANKS
from tests.harness.checkpoints import published_checkpoint, quantised_sizes
from tests.harness.engine_fork import Group, Nursery, Output, without
from tests.harness.inputs.drafting import MTP
from tests.harness.left_to_sglang import left

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(6 + 20 * n))] for n in range(3)]
"""6, 26 and 46 tokens: the prefill is for SGLang's products and our grouped experts, the steps for ours."""
SHORT = [[2, *((11 * i) % 700 + 300 for i in range(25))]]
"""A prefill for grouped experts where the others are for those of a chunk."""
LAYERS = 6
OURS = ("four_bit_linear", "few_row_linear", "few_token_experts", "grouped_experts", "prefill_experts", "router_choice")


def serve(
    nursery: Nursery,
    folder: Path,
    name: str,
    ours: bool,
    form: str = "fp8-dynamic",
    more: str = "",
    tokens: int = 12,
    ranks: int = 1,
    copies: bool = False,
    **given: Any,
) -> list[Output]:
    if not folder.exists():
        checkpoints.write(name, str(folder), quantised=form)
    options: dict[str, Any] = {**MTP, "speculative_draft_model_path": f"{folder}-assistant", "tp_size": ranks, **given}
    env = {
        **without("qkv_rope", "kv_write", "draft_argmax", *([] if ours else OURS), *([] if copies else ["dense_copies"])),
        "SGLANG_GEMMA4_FEW_ROW_LINEAR": "1",
        "SGLANG_GEMMA4_FOUR_BIT_ROWS": "16",
        **(RANKS if ranks > 1 else {}),
        "TEST_INSTRUMENTS": f"quantised_layers:install expert_counter:install{more}",
    }
    groups = [Group(prompts, {"max_new_tokens": tokens}, logprobs=True) for prompts in ([PROMPTS, SHORT] if "forty" in more else [PROMPTS])]
    return [answer for group in nursery.run(folder, groups, env=env, time_limit=500, **options) for answer in group]


def equal(ours: list[Output], others: list[Output]) -> None:
    """Tokens, log-probabilities within 1e-4 and verify steps."""
    for answer, reference in zip(ours, others, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"]


def test_same_tokens_as_dequantised(interpreting: Nursery, tmp_path: Path) -> None:
    ours, plain = (serve(interpreting, tmp_path / "model", "tiny-26b-a4b", each) for each in (True, False))
    log = ours[0].log
    assert "FP8 ROWS, gated." in log
    assert "FP8 ROWS, plain." in log
    assert log.count("EXPERTS by few_token_experts") == LAYERS
    assert log.count("over the routing's blocks") == LAYERS
    assert log.count("A ROUTER chose") == LAYERS
    assert "few_row_linear" not in left(log)
    assert "SGLang's kernels compute the experts" not in log
    assert "FP8 ROWS" not in plain[0].log
    assert "EXPERTS by" not in plain[0].log
    equal(ours, plain)


def test_four_bit_experts(interpreting: Nursery, tmp_path: Path) -> None:
    """Laid out as published. The longest prompt's weights are written out, in memory that six layers share."""
    more = " expert_counter:prefill_of_groups_from_forty_tokens"
    checkpoints.write("tiny-26b-a4b", str(tmp_path / "one_by_one"), quantised="w4a16-g32")
    model = published_checkpoint.write(tmp_path / "one_by_one", tmp_path / "model")
    ours, plain = (serve(interpreting, model, "", each, more=more, tokens=6) for each in (True, False))
    log = ours[0].log
    assert log.count("EXPERTS by prefill_experts") == LAYERS
    assert log.count("A ROOM of ") == 1
    for said in ("4-BIT ROWS, gated.", "4-BIT ROWS, plain.", "A WEIGHT written out."):
        assert said in log
        assert said not in plain[0].log
    assert "four_bit_linear" not in left(log)
    assert "few_row_linear" not in left(log)
    assert log.count("EXPERTS by few_token_experts") == log.count("A ROUTER chose") == LAYERS
    assert log.count("EXPERTS by grouped_experts") == LAYERS
    assert "SGLang's kernels compute the experts" not in log
    assert "EXPERTS by" not in plain[0].log
    equal(ours, plain)


@pytest.mark.parametrize(("form", "said"), [("fp8-dynamic", "FP8"), ("w4a16-g32", "4-BIT")])
def test_layers_that_share_kv(interpreting: Nursery, tmp_path: Path, form: str, said: str) -> None:
    """E2B's project queries only, by a part of a weight."""
    ours, plain = (serve(interpreting, tmp_path / "model", "tiny-e2b", each, form) for each in (True, False))
    assert f"{said} ROWS, plain." in ours[0].log
    assert "shared_query" not in left(ours[0].log)
    assert "shared_query" not in "".join(line for line in ours[0].log.splitlines() if "instead" in line)
    for answer, reference in zip(ours, plain, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)


def test_two_ranks_of_four_bits(interpreting: Nursery, tmp_path: Path) -> None:
    """Parts that are whole groups of 32 and no whole tiles of Marlin, as 26B-A4B's 1,056 on two Hoppers: all layers are for our kernels.

    The one rank multiplies many rows by copies of its dense weights.
    """
    model = quantised_sizes.quantised(quantised_sizes.widened("tiny-26b-a4b", tmp_path / "wide"), FORMATS["w4a16-g32"], tmp_path / "model")
    shutil.copytree(checkpoints.SHIPPED / "tiny-26b-a4b-assistant", tmp_path / "model-assistant")
    one = serve(interpreting, model, "", True, tokens=8, copies=True)
    assert "bfloat16 copies of all 4-bit dense weights take 0.0 GiB of the GPU" in one[0].log
    two = serve(interpreting, model, "", True, more=" gloo_ranks:install", tokens=8, ranks=2)
    log = two[0].log
    for said in ("4-BIT ROWS, gated.", "4-BIT ROWS, plain.", "A WEIGHT written out."):
        assert log.count(said) == 2, "on each rank"
    assert "four_bit_linear" not in left(log)
    assert "few_row_linear" not in left(log)
    assert "SGLang's kernels compute the experts" not in log
    equal(two, one)


@pytest.mark.parametrize("form", ["fp8-static", "--quantization fp8"])
def test_scales_by_tensor_and_weights_quantised_while_loaded(interpreting: Nursery, tmp_path: Path, form: str) -> None:
    """One scale for a product (of q, k and v the largest of theirs) or an expert; online a scale for each output."""
    options: dict[str, Any] = {"form": form, "tokens": 8}
    folder = tmp_path / "model"
    if form.startswith("--"):
        folder, options = checkpoints.SHIPPED / "tiny-26b-a4b", {"quantization": "fp8", "tokens": 8}
    ours, plain = (serve(interpreting, folder, "tiny-26b-a4b", each, **options) for each in (True, False))
    log = ours[0].log
    for said in ("FP8 ROWS, gated.", "FP8 ROWS, plain."):
        assert said in log
        assert said not in plain[0].log
    assert log.count("EXPERTS by few_token_experts") == LAYERS
    assert "few_row_linear" not in left(log)
    assert "SGLang's kernels compute the experts" not in log
    assert "EXPERTS by" not in plain[0].log
    equal(ours, plain)


def test_blocks_of_128(interpreting: Nursery, tmp_path: Path) -> None:
    """As the released sizes have them; the tiny ones elsewhere here have blocks of 32, which our kernels leave to SGLang's."""
    model = quantised_sizes.blocks_of_128(tmp_path / "model")
    shutil.copytree(checkpoints.SHIPPED / "tiny-31b-assistant", tmp_path / "model-assistant")
    ours, plain = (serve(interpreting, model, "", each, tokens=8) for each in (True, False))
    assert "FP8 ROWS, gated, in blocks of 128." in ours[0].log
    assert "FP8 ROWS, plain, in blocks of 128." in ours[0].log
    assert "few_row_linear" not in left(ours[0].log)
    assert "FP8 ROWS" not in plain[0].log
    equal(ours, plain)
