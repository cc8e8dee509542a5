"""The triton backend over a quantised cache, interpreted, in float32: the tokens of the CPU engine over the same cache."""

from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.engine.test_attention_kernel import PROMPTS
from tests.harness.engine_fork import INTERPRETED, EngineFailed, Group, Nursery, Output, without
from tests.harness.inputs.drafting import MTP
from tests.harness.left_to_sglang import left

KIND = "int8_per_token_head"
LAUNCHED = {"SGLANG_GEMMA4_WITHOUT": ",".join(name for name in INTERPRETED if name not in ("qkv_rope", "kv_write"))}
"""The launch of norms and rotation writes the cache; else the pool does."""


def serve(nursery: Nursery, model: str, env: dict[str, str], **options: Any) -> list[Output]:
    groups = [Group(PROMPTS, {"max_new_tokens": 8}, logprobs=True)]
    env = {"SGLANG_GEMMA4_ATTENTION": "1", **env}
    return nursery.run(resolve(model), groups, env=env, time_limit=400, **{"kv_cache_dtype": KIND, **options})[0]


@pytest.mark.parametrize(
    ("model", "mtp", "env", "options"),
    [
        ("tiny-26b-a4b", False, LAUNCHED, {"chunked_prefill_size": 32}),
        ("tiny-26b-a4b", True, without(*INTERPRETED), {"page_size": 1}),
        ("tiny-e2b", True, LAUNCHED, {}),
    ],
    ids=["plain-launched", "mtp", "e2b-mtp-launched"],
)
def test_tokens_are_those_of_the_cpu_engine(
    model: str, mtp: bool, env: dict[str, str], options: dict[str, Any], interpreting: Nursery, nursery: Nursery
) -> None:
    options |= {**MTP, "speculative_draft_model_path": f"{resolve(model)}-assistant"} if mtp else {}
    ours = serve(interpreting, model, env, attention_backend="triton", **options)
    reference = serve(nursery, model, {}, **options)
    assert "SGLang's" not in "".join(line for line in ours[0].log.splitlines() if "kernel decodes" in line or "kernel prefills" in line)
    for one, other in zip(ours, reference, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=0.01), "a sum in another order may round a key to the next level"
        if mtp:
            assert one.meta_info["spec_verify_ct"] == other.meta_info["spec_verify_ct"] < len(one.token_ids), "drafts were accepted"


FP8: dict[str, Any] = {"attention_backend": "triton", "kv_cache_dtype": "fp8_e4m3"}
WATCHED = {**without(*INTERPRETED), "TEST_INSTRUMENTS": "calibrated_cache:allow kernel_counters:attention"}


def test_sglang_s_fp8_cache_where_layers_share_kv(interpreting: Nursery) -> None:
    """By our kernels: a verify step reads its own keys as later steps do, so MTP's tokens are plain decoding's."""
    plain = serve(interpreting, "tiny-e2b", WATCHED, **FP8)
    drafted = serve(interpreting, "tiny-e2b", WATCHED, **FP8, **MTP, speculative_draft_model_path=f"{resolve('tiny-e2b')}-assistant")
    for one, other in zip(drafted, plain, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=0.02), "a sum in another order may round a key to the next level"
        assert one.meta_info["spec_verify_ct"] < len(one.token_ids), "drafts were accepted"
    for log in (plain[0].log, drafted[0].log):
        assert "READ LEVELS of a layer" in log
        assert "kv_formats" not in left(log)


def test_sglang_s_fp8_cache_elsewhere_is_read_by_its_own_kernels(interpreting: Nursery) -> None:
    answers = serve(interpreting, "tiny-26b-a4b", WATCHED, **FP8)
    assert all(len(answer.token_ids) == 8 for answer in answers)
    assert "READ LEVELS of a layer" not in answers[0].log
    assert "SGLang's kernels read an fp8 cache where no layers share KV" in left(answers[0].log)["kv_formats"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attention_backend": "fa4"}, "attention backend fa4 reads no such cache; use --attention-backend triton"),
        (
            {"enable_hierarchical_cache": True},
            "with --enable-hierarchical-cache: the tier on the host copies elements without their scales",
        ),
        (
            {"disaggregation_mode": "prefill", "disaggregation_transfer_backend": "mori"},
            "--disaggregation-transfer-backend mori was not tried with scales; use nixl or mooncake",
        ),
    ],
)
def test_what_does_not_run_is_refused_before_weights_are_loaded(options: dict[str, Any], said: str, nursery: Nursery) -> None:
    with pytest.raises(EngineFailed) as error:
        nursery.run(resolve("tiny-26b-a4b"), [Group([[2, 300]])], None, 60.0, kv_cache_dtype=KIND, **options)
    assert f"--kv-cache-dtype {KIND}" in str(error.value)
    assert said in str(error.value)
    assert "Load weight begin" not in str(error.value)
