"""The experts' gelu in SGLang's Triton runner, interpreted: by tanh as in transformers with the patch, by erf without."""

from pathlib import Path
from typing import Any

import torch

from crash_repro import case
from tests.engine import text_only
from tests.engine.engine_fork import Group, Nursery, Output

CLOSE = 0.2
"""Of a log-probability: the runner rounds float32 to float16 (``fused_moe.py:586``), worth 0.01 to 0.07; the gelus are 1.6 to 2 apart."""


def next_token(model: Any) -> list[torch.Tensor]:
    """Log-probabilities of the token after each prompt, by transformers."""
    with torch.no_grad():
        return [model(torch.tensor([prompt])).logits[0, -1].float().log_softmax(-1) for prompt in case.PROMPTS]


def away(answers: list[Output], expected: list[torch.Tensor]) -> float:
    """The larger distance between an answer's log-probability of its first token and the expected one."""
    pairs = zip(answers, expected, strict=True)
    return max(abs(answer.logprobs[0] - float(scores[answer.token_ids[0]])) for answer, scores in pairs)


def test_both_ways(interpreting: Nursery, tmp_path: Path) -> None:
    model = case.negative_gates_model()
    path, tanh = text_only.save(model, tmp_path), next_token(model)
    for layer in model.model.layers:
        layer.experts.act_fn = torch.nn.GELU()
    erf = next_token(model)
    group = Group(case.PROMPTS, {"max_new_tokens": 1}, logprobs=True)
    seen = {}
    for switch in ("1", "0"):
        env = {"SGLANG_GEMMA4_EXPERT_GELU": switch, "TEST_SABOTAGE": "triton_experts:install"}
        (answers,) = interpreting.run(path, [group], env=env, time_limit=300)
        assert "expert_gelu declined" not in answers[0].log
        seen[switch] = away(answers, tanh), away(answers, erf)
    print("from tanh and from erf:", seen)
    assert seen["1"][0] <= CLOSE < seen["1"][1]
    assert seen["0"][1] <= CLOSE < seen["0"][0]
