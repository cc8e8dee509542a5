"""Products of a few rows through our kernel, interpreted, in float32: tokens, log-probabilities and verify steps of SGLang's products."""

from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import with_assistant
from tests.harness.left_to_sglang import left

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(12 + 25 * n))] for n in range(2)]


def serve(nursery: Nursery, name: str, on: str) -> list[Output]:
    model = resolve(name)
    options: dict[str, Any] = with_assistant(model)
    env = {"SGLANG_GEMMA4_FEW_ROW_LINEAR": on, "TEST_INSTRUMENTS": "kernel_counters:few_rows"}
    return nursery.run(model, [Group(PROMPTS, {"max_new_tokens": 6}, logprobs=True)], env=env, time_limit=400, **options)[0]


@pytest.mark.parametrize("name", ["tiny-26b-a4b", "tiny-e2b"])
def test_same_tokens_as_sglang_s_products(interpreting: Nursery, name: str) -> None:
    stock, ours = serve(interpreting, name, "0"), serve(interpreting, name, "1")
    assert "FEW ROWS" not in stock[0].log
    assert "FEW ROWS, gated." in ours[0].log
    assert "FEW ROWS, plain." in ours[0].log
    assert "few_row_linear" not in left(ours[0].log)
    for answer, reference in zip(ours, stock, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"]


def test_without_triton_the_products_are_sglang_s(nursery: Nursery) -> None:
    ours, stock = serve(nursery, "tiny-e2b", "1"), serve(nursery, "tiny-e2b", "0")
    assert left(ours[0].log)["few_row_linear"].count("there is no CUDA GPU") == 1
    assert "FEW ROWS" not in ours[0].log
    assert [(one.token_ids, one.logprobs) for one in ours] == [(other.token_ids, other.logprobs) for other in stock]


def test_weights_that_are_mapped(interpreting: Nursery, tmp_path: Path) -> None:
    """Of ``bench --share-weights``: when the second engine's layers are built, their weights have no memory of their own yet."""
    model = resolve("tiny-26b-a4b")
    filled, mapped = (
        interpreting.run(
            model,
            [Group(PROMPTS, {"max_new_tokens": 6})],
            env={
                "SGLANG_GEMMA4_FEW_ROW_LINEAR": "1",
                "SGLANG_GEMMA4_SHARED_WEIGHTS": f"8192:{tmp_path}",
                "TEST_INSTRUMENTS": "kernel_counters:few_rows",
            },
            time_limit=400,
            load_format="dummy",
        )[0]
        for _ in range(2)
    )
    for answers in (filled, mapped):
        assert "FEW ROWS, gated." in answers[0].log
        assert "few_row_linear" not in left(answers[0].log)
    assert [answer.token_ids for answer in mapped] == [answer.token_ids for answer in filled]
