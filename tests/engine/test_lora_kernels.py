"""Kernels beside adapters, interpreted: products of few rows are ours and keep what an adapter adds; SGLang's of adapted experts."""

from pathlib import Path
from typing import Any

import torch

from crash_repro import case
from sglang_gemma4.tiny import families, random_adapters
from tests.harness.checkpoints import lora_adapters, text_only
from tests.harness.engine_fork import Group, Nursery
from tests.harness.left_to_sglang import left
from tests.harness.oracles import reference

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
    env = {"SGLANG_GEMMA4_FEW_ROW_LINEAR": "1", "TEST_INSTRUMENTS": "kernel_counters:few_rows"}
    groups = [
        Group(PROMPTS, {"max_new_tokens": TOKENS}, client="generate:adapters", extra={"adapters": adapters})
        for adapters in (["some", "some"], [None, "some"])
    ]
    answers = interpreting.run(path, groups, env=env, lora_paths={"some": str(adapter)})
    assert [answer.token_ids for answer in answers[0]] == adapted
    assert [answer.token_ids for answer in answers[1]] == [plain[0], adapted[1]]
    log = answers[0][0].log
    assert "FEW ROWS, plain." in log
    assert "FEW ROWS, gated." not in log
    assert "gate_up_proj became a MergedColumnParallelLinearWithLoRA" in left(log)["few_row_linear"]


SMALL: dict[str, Any] = {
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_experts": 4,
    "top_k_experts": 2,
}
"""An interpreted program takes milliseconds, and there is one for each block of rows of an expert and adapter."""


def test_experts_by_sglang_s_kernels(interpreting: Nursery, tmp_path: Path) -> None:
    """PEFT's ``target_parameters``, beside an adapted projection; a row without an adapter in the same batch."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    torch.manual_seed(0)
    config = {**families.TEXT["tiny-26b-a4b"], "use_bidirectional_attention": None, **SMALL}
    model = Gemma4ForCausalLM(Gemma4TextConfig(**config, initializer_range=0.12, dtype=torch.float32)).eval()
    for layer in model.model.layers:
        layer.post_feedforward_layernorm.weight.data.fill_(6.0)  # else two layers say little beside the embedding they add to
    path = text_only.save(model, tmp_path / "model", sglang_names=False)
    plain = [reference.greedy(model, {"input_ids": torch.tensor([prompt])}, TOKENS) for prompt in PROMPTS]
    asked: dict[str, Any] = {"target_modules": ["q_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
    adapter = lora_adapters.adapt(model, tmp_path / "adapter", PROMPTS, TOKENS, r=2, lora_alpha=32, **asked)
    assert all(one != other for one, other in zip(plain, adapter.answers, strict=True))
    group = Group(PROMPTS, {"max_new_tokens": TOKENS}, client="generate:adapters", extra={"adapters": [None, "some"]})
    env = {"TEST_INSTRUMENTS": "triton_experts:install triton_experts:adapters"}
    answers = interpreting.run(path, [group], env=env, lora_paths={"some": str(adapter.path)})[0]
    assert [answer.token_ids for answer in answers] == [plain[0], adapter.answers[1]]
    assert "and experts" in answers[0].log
