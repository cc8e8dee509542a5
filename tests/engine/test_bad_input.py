"""What cannot work is refused in one line before any weight is loaded: by ``launch_server`` itself and by an Engine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_gemma4.cpu.environment import launch_environment
from sglang_gemma4.tiny import checkpoints
from tests.harness.engine_fork import EngineFailed, Group, Nursery, without

TARGET = checkpoints.SHIPPED / "tiny-26b-a4b"
WRONG = checkpoints.SHIPPED / "tiny-e2b-assistant"


def mtp(steps: int, topk: int, tokens: int, backend: str | None = None) -> dict[str, object]:
    """MTP with the right assistant."""
    return {
        "speculative_draft_model_path": f"{TARGET}-assistant",
        "speculative_num_steps": steps,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": tokens,
        "speculative_draft_attention_backend": backend,
    }


def test_launch_server_ends_with_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(TARGET), "--device", "cpu"]
    command += ["--speculative-algorithm", "NEXTN", "--speculative-draft-model-path", str(WRONG)]
    done = subprocess.run(command, env=launch_environment(os.environ), capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"sglang-gemma4: assistant {WRONG} does not fit {TARGET}: its sliding_attention layers read 1 KV heads")
    assert "Traceback" not in done.stderr
    assert "Load weight" not in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attention_backend": "flashinfer"}, "--attention-backend flashinfer cannot serve Gemma 4; use one of triton"),
        ({"prefill_attention_backend": "trtllm_mha"}, "attention backend trtllm_mha masks this model's images as text"),
        ({"swa_full_tokens_ratio": 1.5}, "--swa-full-tokens-ratio 1.5 is not above 0 and at most 1"),
        ({"swa_full_tokens_ratio": 0.5, "disable_hybrid_swa_memory": True}, "leave one of them out"),
        ({"speculative_algorithm": "NEXTN"}, "needs Gemma 4's MTP assistant; add --speculative-draft-model-path"),
        ({"speculative_algorithm": "NEXTN", "speculative_draft_model_path": WRONG}, "does not fit"),
        ({"enable_pdmux": True}, "--enable-pdmux prefills layer by layer"),
        (mtp(3, 1, 5), "--speculative-num-draft-tokens 5: 3 steps of topk 1 make a tree of 4 tokens at most"),
        (mtp(3, 1, 4, "aiter"), "--speculative-draft-attention-backend aiter: it is not known which of the target's KV state"),
        (mtp(3, 2, 6, "fa4"), "--speculative-eagle-topk 2: MTP drafts trees on triton and trtllm_mha only, not with --speculative-draft"),
    ],
)
def test_an_engine_raises(options: dict[str, object], said: str, nursery: Nursery) -> None:
    with pytest.raises(EngineFailed) as error:
        nursery.run(TARGET, [Group([[2, 300]])], None, 60.0, **options)
    assert "PreflightError" in str(error.value)
    assert said in str(error.value)
    assert "Load weight begin" not in str(error.value)


@pytest.mark.parametrize(("kind", "draft"), [("fp8_e4m3", "auto"), ("fp8_e5m2", None)], ids=["mtp", "plain"])
def test_an_fp8_cache_on_triton_with_shared_layers(kind: str, draft: str | None, nursery: Nursery) -> None:
    """Each ends SGLang's first prefill (``crash_repro/fp8_shared_kv.py``), unless the patch kv_formats reads the cache."""
    options = {"attention_backend": "triton", "kv_cache_dtype": kind, "speculative_draft_model_path": draft}
    with pytest.raises(EngineFailed) as error:
        nursery.run(checkpoints.SHIPPED / "tiny-e2b", [Group([[2, 300]])], without("kv_formats"), 60.0, **options)
    said = f"--kv-cache-dtype {kind}: 5 layers of this model read the KV of other layers, which SGLang's triton prefill and verify take for"
    assert f"PreflightError: {said}" in str(error.value)
    assert "Load weight begin" not in str(error.value)


def test_a_pool_below_the_context_that_was_asked_for(nursery: Nursery) -> None:
    early = "--context-length 2048: one request may have 2048 tokens and --max-total-tokens 1024 are all there are; raise that, or lower"
    late = "--context-length 2048: one request may have 2048 tokens and the full pool holds 1024; raise --max-total-tokens 1024"
    for env, said, unseen in ((None, early, "Load weight begin"), ({"SGLANG_GEMMA4_WITHOUT": "preflight"}, late, "KV Cache is allocated")):
        with pytest.raises(EngineFailed) as error:
            nursery.run(TARGET, [Group([[2, 300]])], env, 60.0, context_length=2048, max_total_tokens=1024)
        assert said in str(error.value)
        assert unseen not in str(error.value)
    (outputs,) = nursery.run(TARGET, [Group([[2, 300]])], None, 60.0, max_total_tokens=1024)
    assert "longer requests will be refused" in outputs[0].log, "a context that only the model's config names is a warning"


def test_a_ratio_that_starves_the_sliding_pool(nursery: Nursery) -> None:
    with pytest.raises(
        EngineFailed, match=r"--swa-full-tokens-ratio 0.05: the sliding pool holds 102 tokens, a running request takes up to"
    ):
        nursery.run(TARGET, [Group([[2, 300]])], None, 60.0, swa_full_tokens_ratio=0.05)


def test_an_unknown_model_is_one_line(nursery: Nursery) -> None:
    with pytest.raises(EngineFailed, match="model /nowhere/gemma does not exist; give a checkpoint's directory"):
        nursery.run("/nowhere/gemma", [Group([[2, 300]])], None, 60.0)
