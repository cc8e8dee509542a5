"""Our kernels beside adapters, interpreted: products of few rows are ours, what an adapter adds is there, and what cannot be fused declines."""

from pathlib import Path
from typing import Any

import torch

from crash_repro import case
from sglang_gemma4.tiny import random_adapters
from tests.engine import reference, text_only
from tests.engine.engine_fork import Group, Nursery

TOKENS = 3
PROMPTS = [case.PROMPTS[0][:6], case.PROMPTS[1][:4]]


def test_same_tokens_as_merged_weights(interpreting: Nursery, tmp_path: Path) -> None:
    model = case.text_model("tiny-31b")
    path = text_only.save(model, tmp_path / "model", sglang_names=False)
    sizes = random_adapters.sizes_of(model)
    made: dict[str, Any] = {"rank": 4, "seed": 0, "spread": 0.05}
    adapter = random_adapters.write(tmp_path / "adapter", sizes, **made)

    def expected() -> list[list[int]]:
        return [reference.greedy(model, {"input_ids": torch.tensor([prompt])}, TOKENS) for prompt in PROMPTS]

    plain = expected()
    random_adapters.merge(model, random_adapters.weights(sizes, **made))
    adapted = expected()
    assert all(one != other for one, other in zip(plain, adapted, strict=True))
    env = {"SGLANG_GEMMA4_FEW_ROW_LINEAR": "1", "TEST_SABOTAGE": "few_row_counter:install"}
    groups = [
        Group(PROMPTS, {"max_new_tokens": TOKENS}, client="lora_client:send", extra={"adapters": adapters})
        for adapters in (["some", "some"], [None, "some"])
    ]
    answers = interpreting.run(path, groups, env=env, lora_paths={"some": str(adapter)})
    assert [answer.token_ids for answer in answers[0]] == adapted
    assert [answer.token_ids for answer in answers[1]] == [plain[0], adapted[1]]
    log = answers[0][0].log
    assert "FEW ROWS, plain." in log
    assert "FEW ROWS, gated." not in log
    assert "few_row_linear declined: gate_up_proj became a MergedColumnParallelLinearWithLoRA" in log
