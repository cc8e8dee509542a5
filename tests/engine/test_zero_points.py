"""4-bit weights with zero points, as AWQ and compressed-tensors' W4A16_ASYM have them, and AWQ's own layout."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from crash_repro import dequantised, shipped
from sglang_gemma4.tiny import checkpoints
from sglang_gemma4.tiny.quantisation import FORMATS
from tests.engine.test_quantised import accept_length, greedy, tokens_of
from tests.engine.test_quantised_kernels import LAYERS, equal, serve
from tests.engine.test_two_ranks import RANKS
from tests.harness.checkpoints import gptq_checkpoint, quantised_sizes
from tests.harness.engine_fork import EngineFailed, Group, Nursery, without
from tests.harness.left_to_sglang import left

MODEL, FORM = "tiny-26b-a4b", "w4a16-asym-g32"
Written = Callable[[str], Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A family's checkpoint as compressed-tensors writes it; its assistant lies beside it."""
    folder = tmp_path_factory.mktemp("zeros")

    @cache
    def write(family: str) -> Path:
        checkpoints.write(family, str(folder / family), quantised=FORM)
        return folder / family

    return write


def test_experts_have_their_weights_tokens_with_and_without_mtp(nursery: Nursery, written: Written, tmp_path: Path) -> None:
    model = written(MODEL)
    expected = tokens_of(greedy(nursery, dequantised.write(model, tmp_path / "float32")))
    plain, drafted = greedy(nursery, model), greedy(nursery, model, mtp=True)
    assert tokens_of(plain) == tokens_of(drafted) == expected
    assert accept_length(drafted) > 1.5


def test_two_ranks_have_their_parts_of_the_zero_points(nursery: Nursery, tmp_path: Path) -> None:
    model = quantised_sizes.quantised(quantised_sizes.widened(MODEL, tmp_path / "wide"), FORMATS[FORM], tmp_path / "model")
    one, two = greedy(nursery, model), greedy(nursery, model, env=RANKS, tp_size=2)
    assert tokens_of(one) == tokens_of(two)


@pytest.mark.parametrize(("family", "flag", "changes"), [
    (MODEL, None, {}),
    ("tiny-e2b", "awq_marlin", {}),
    ("tiny-31b", "auto-round", {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}),
])  # fmt: skip
def test_awq_s_layout_is_the_same_weights(
    nursery: Nursery, written: Written, tmp_path: Path, family: str, flag: str | None, changes: dict[str, Any]
) -> None:
    awq = gptq_checkpoint.write_awq(written(family), tmp_path / "model", **changes)
    options: dict[str, Any] = {"quantization": flag} if flag else {}
    expected, plain = greedy(nursery, written(family)), greedy(nursery, awq, **options)
    assert [one.logprobs for one in plain] == [one.logprobs for one in expected], "bit for bit"
    assert tokens_of(greedy(nursery, awq, mtp=True, **options)) == tokens_of(plain)


def test_a_vision_tower_stays_as_it_is(nursery: Nursery, written: Written, tmp_path: Path) -> None:
    group = Group([shipped.IMAGE_TEXT], {"max_new_tokens": 8}, images=[str(shipped.draw(tmp_path))], logprobs=True)
    models = written(MODEL), gptq_checkpoint.write_awq(written(MODEL), tmp_path / "model")
    expected, found = (nursery.run(one, [group], skip_tokenizer_init=False)[0][0] for one in models)
    assert found.logprobs == expected.logprobs


def test_drafts_are_accepted_as_those_for_bfloat16(nursery: Nursery, written: Written) -> None:
    before, after = (accept_length(greedy(nursery, one, mtp=True, tokens=48)) for one in (checkpoints.SHIPPED / MODEL, written(MODEL)))
    assert after > 0.97 * before


def test_our_kernels_interpreted(interpreting: Nursery, written: Written) -> None:
    """Experts and dense layers, in steps and in prefills."""
    ours, plain = (serve(interpreting, written(MODEL), "", each, tokens=6) for each in (True, False))
    log = ours[0].log
    assert log.count("EXPERTS by few_token_experts") == log.count("A ROUTER chose") == LAYERS
    assert log.count("EXPERTS by grouped_experts") == LAYERS
    assert "SGLang's kernels compute the experts" not in log
    for said in ("4-BIT ROWS, gated.", "4-BIT ROWS, plain.", "A WEIGHT written out."):
        assert said in log
        assert said not in plain[0].log
    assert "four_bit_linear" not in left(log)
    assert "few_row_linear" not in left(log)
    assert "EXPERTS by" not in plain[0].log
    equal(ours, plain)


@pytest.mark.parametrize(("changes", "env", "said"), [
    ({"version": "gemv"}, {}, "quantised values packed otherwise (version gemv)"),
    ({}, without("gptq_layout"), "gptq_layout or quantised_names left out"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(
    nursery: Nursery, written: Written, tmp_path: Path, changes: dict[str, Any], env: dict[str, str], said: str
) -> None:
    model = gptq_checkpoint.write_awq(written(MODEL), tmp_path / "model", **changes)
    (model / "model.safetensors").unlink()
    with pytest.raises(EngineFailed) as refused:
        greedy(nursery, model, env=env)
    assert f"quant_method awq with {said}: the CPU reference engine reads checkpoints of compressed-tensors only" in str(refused.value)
