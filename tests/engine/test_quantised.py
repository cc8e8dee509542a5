"""Quantised checkpoints on the CPU engine, written by compressed-tensors' own library: the tokens of transformers with the same weights.

transformers 5.19 reads the dense ones itself. It cannot read experts that are written one by one, so the MoE model is compared with its
weights in float32 (``crash_repro/dequantised.py``), on an engine; ``crash_repro/quantised_*.py`` compare such engines with transformers.
"""

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from crash_repro import dequantised
from sglang_gemma4.tiny import chat_format, checkpoints, dialogues
from tests.engine.test_accept_length import ENGINE, prompts
from tests.engine.test_two_ranks import RANKS
from tests.harness.engine_fork import EngineFailed, Group, Nursery, Output
from tests.harness.oracles import transformers_oracle

NEW_TOKENS = 24
NEAR_TIE = 0.02
"""Of logits: sums of float32 in another order move an activation to the next float8 level here and there, after which log-probabilities
differ by up to 0.012 (tiny-31b in fp8-block, where two answers of four leave transformers' at margins of 0.001 and 0.010)."""
Written = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The folder of a family in a format, written once; its assistant lies beside it."""
    folder = tmp_path_factory.mktemp("quantised")

    @cache
    def write(family: str, form: str) -> Path:
        path = folder / f"{family}-{form}"
        checkpoints.write(family, str(path), quantised=form)
        return path

    return write


def greedy(
    nursery: Nursery, model: Path, asked: list[list[int]] | None = None, mtp: bool = False, tokens: int = NEW_TOKENS, **options: Any
) -> list[Output]:
    if mtp:
        options = {**ENGINE, "speculative_draft_model_path": f"{model}-assistant", **options}
    return nursery.run(model, [Group(asked or prompts()[:4], {"max_new_tokens": tokens}, logprobs=True)], **options)[0]


def tokens_of(outputs: list[Output]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def accept_length(outputs: list[Output]) -> float:
    steps: int = sum(output.meta_info["spec_verify_ct"] for output in outputs)
    return sum(len(output.token_ids) for output in outputs) / steps


def test_4_bit_experts_have_their_weights_tokens_with_and_without_mtp(nursery: Nursery, written: Written, tmp_path: Path) -> None:
    model = written("tiny-26b-a4b", "w4a16-g32")
    expected = tokens_of(greedy(nursery, dequantised.write(model, tmp_path / "float32")))
    plain, drafted = greedy(nursery, model), greedy(nursery, model, mtp=True)
    assert tokens_of(plain) == tokens_of(drafted) == expected
    assert accept_length(drafted) > 1.5, "the assistant, in bfloat16 on disk, drafts for the quantised target"


def test_two_ranks_load_their_parts_of_levels_and_scales(nursery: Nursery, written: Written) -> None:
    """Scales by output follow the rows that a rank has; activations of a row-split product are rounded by each rank's own part."""
    model = written("tiny-26b-a4b", "fp8-dynamic")
    one, two = greedy(nursery, model), greedy(nursery, model, env=RANKS, tp_size=2)
    agree = [
        next((n for n, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), NEW_TOKENS)
        for x, y in zip(*map(tokens_of, (one, two)), strict=True)
    ]
    assert sum(agree) > 0.7 * NEW_TOKENS * len(agree), agree


@pytest.mark.parametrize("form", ["fp8-dynamic", "fp8-static", "fp8-block", "online"])
def test_float8_experts_have_mtp_s_tokens_without_it(nursery: Nursery, written: Written, form: str) -> None:
    """online: ``--quantization fp8``."""
    options: dict[str, Any] = {"quantization": "fp8"} if form == "online" else {}
    model = checkpoints.SHIPPED / "tiny-26b-a4b" if form == "online" else written("tiny-26b-a4b", form)
    assert tokens_of(greedy(nursery, model, **options)) == tokens_of(greedy(nursery, model, mtp=True, **options))


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("tiny-31b", "w4a16-g32"),
        ("tiny-31b", "w4a16-g128"),
        ("tiny-31b", "w4a16-asym-g32"),
        ("tiny-31b", "fp8-dynamic"),
        ("tiny-31b", "fp8-static"),
        ("tiny-31b", "fp8-block"),
        ("tiny-12b", "w4a16-g32"),
        ("tiny-e2b", "fp8-static"),
        ("tiny-e2b", "fp8-dynamic"),
        ("tiny-e2b", "fp8-block"),
        ("tiny-e2b", "w4a16-g32"),
        ("tiny-e2b", "w4a16-g128"),
        ("tiny-e2b", "w4a16-asym-g32"),
    ],
)
def test_dense_models_have_the_tokens_of_transformers_own_path(
    nursery: Nursery, written: Written, tmp_path: Path, family: str, form: str
) -> None:
    model, rng = written(family, form), random.Random(5)
    texts = [chat_format.render(dialogues.chat(rng, "held_out", turns=1), prompt_only=True) for _ in range(4)]
    oracle = transformers_oracle.decode(model, [{"text": text, "images": []} for text in texts], NEW_TOKENS, tmp_path)
    asked = [one.input_ids for one in oracle]
    plain, drafted = greedy(nursery, model, asked), greedy(nursery, model, asked, mtp=True)
    assert tokens_of(plain) == tokens_of(drafted)
    for answer, expected in zip(plain, oracle, strict=True):
        left = next((n for n, pair in enumerate(zip(answer.token_ids, expected.token_ids, strict=True)) if pair[0] != pair[1]), NEW_TOKENS)
        assert left == NEW_TOKENS or (form.startswith("fp8") and expected.margin < NEAR_TIE), (left, expected.margin)
        assert answer.logprobs[:left] == pytest.approx(expected.logprobs[:left], abs=NEAR_TIE if form.startswith("fp8") else 1e-4)


@pytest.mark.parametrize("form", ["fp8-dynamic", "w4a16-g32", "online"])
@pytest.mark.parametrize("family", ["tiny-26b-a4b", "tiny-e2b"])
def test_drafts_are_accepted_as_those_for_bfloat16(nursery: Nursery, written: Written, family: str, form: str) -> None:
    """Within 3 % over 12 prompts of 48 tokens; online: ``--quantization fp8`` of the bfloat16 checkpoint, not of its assistant."""
    plain = checkpoints.SHIPPED / family
    model, options = (plain, {"quantization": "fp8"}) if form == "online" else (written(family, form), {})
    before, after = (greedy(nursery, one, prompts(), True, 48, **flags) for one, flags in ((plain, {}), (model, options)))
    print(f"{family} {form}: accept length {accept_length(after):.3f}, of bfloat16 {accept_length(before):.3f}")
    assert accept_length(after) > 0.97 * accept_length(before)


def test_random_quantised_weights_give_tokens_that_vary(nursery: Nursery, written: Written) -> None:
    for form in ("fp8-dynamic", "w4a16-g32"):
        outputs = greedy(nursery, written("tiny-26b-a4b", form), tokens=64, load_format="dummy")
        assert min(len(set(output.token_ids)) for output in outputs) >= 16, [output.token_ids for output in outputs]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weights": {"strategy": "tensor"}}, "float8 by tensor with activations by token: SGLang's experts take"),
        ({"weights": {"type": "int"}}, "SGLang has no kernel with gelu for such experts"),
    ],
)
def test_a_format_that_does_not_work_is_refused_before_weights_load(
    nursery: Nursery, written: Written, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    config = json.loads((written("tiny-26b-a4b", "fp8-dynamic") / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"] |= change["weights"]
    (tmp_path / "config.json").write_text(json.dumps(config))  # and no weights
    with pytest.raises(EngineFailed) as refused:
        greedy(nursery, tmp_path)
    assert said in str(refused.value)
    assert "here work checkpoints of compressed-tensors in fp8-dynamic, fp8-static" in str(refused.value)
