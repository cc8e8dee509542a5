"""KV scales that mean nothing: SGLang's placeholders of 1 under --quantization fp8, and a quantised assistant's beside a target without."""

from typing import Any

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import MTP

MODEL = resolve("tiny-26b-a4b")
PROMPTS = [[2, *((7 * i) % 700 + 300 for i in range(7))]]


def serve(nursery: Nursery, without: str, **options: Any) -> list[Output]:
    env = {"SGLANG_GEMMA4_ATTENTION": "1", "SGLANG_GEMMA4_WITHOUT": without}
    options = {**MTP, "attention_backend": "triton", "speculative_draft_model_path": f"{MODEL}-assistant", **options}
    return nursery.run(MODEL, [Group(PROMPTS, {"max_new_tokens": 5}, logprobs=True)], env=env, time_limit=400, **options)[0]


def test_nothing_steps_aside_for_scales_of_one(interpreting: Nursery) -> None:
    """Weights quantised while they are loaded, the assistant's too."""
    (ours,), (usual,) = (serve(interpreting, without, quantization="fp8") for without in ("", "unit_kv_scales"))
    assert "keys and values are scaled in the cache" in usual.log
    assert "keys and values are scaled in the cache" not in ours.log
    assert "a layer has scales" not in ours.log
    assert ours.token_ids == usual.token_ids
    assert ours.logprobs == usual.logprobs
    assert ours.meta_info["spec_verify_ct"] == usual.meta_info["spec_verify_ct"]


def test_an_fp8_assistant_of_a_target_without_scales(interpreting: Nursery, nursery: Nursery) -> None:
    """It has scales of its own as it is loaded, but reads the target's keys. Tokens are those of the assistant as it is."""
    (ours,) = serve(interpreting, "unit_kv_scales", speculative_draft_model_quantization="fp8")
    (usual,) = nursery.run(MODEL, [Group(PROMPTS, {"max_new_tokens": 5})], speculative_draft_model_path=f"{MODEL}-assistant", **MTP)[0]
    assert "SGLang's decode kernel decodes" not in ours.log
    assert ours.token_ids == usual.token_ids
