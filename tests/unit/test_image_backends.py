"""Where SGLang chooses the attention backend by itself and it masks images as text, triton prefills; what the operator chose stands."""

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.arg_groups.model_overrides import gemma4

from sglang_gemma4.serving.media.bidirectional_images import prefill_by_triton

TWO_WAY = SimpleNamespace(architectures=["Gemma4ForConditionalGeneration"], vision_config={}, use_bidirectional_attention="vision")
TWO_WAY.get_text_config = lambda: TWO_WAY
CAUSAL = SimpleNamespace(**{**vars(TWO_WAY), "use_bidirectional_attention": None})
CAUSAL.get_text_config = lambda: CAUSAL


def resolve(monkeypatch: pytest.MonkeyPatch, config: Any, blackwell: bool, **asked: Any) -> dict[str, Any]:
    """What SGLang's own rule for Gemma 4 declares, and what is made of it."""
    unset: dict[str, Any] = dict.fromkeys(
        ("attention_backend", "prefill_attention_backend", "decode_attention_backend", "enable_multimodal")
    )
    server_args = SimpleNamespace(**{**unset, "language_model_only": False, "moe_runner_backend": "triton", **asked})
    monkeypatch.setattr(gemma4, "get_platform", lambda: SimpleNamespace(is_sm100=blackwell))
    declared: dict[str, Any] = gemma4._gemma4_overrides(server_args, config)
    changed = prefill_by_triton(declared, gemma4._gemma4_overrides, server_args, config)
    return declared if changed is None else changed


def test_a_blackwell_card_prefills_by_triton_and_decodes_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    found = resolve(monkeypatch, TWO_WAY, blackwell=True)
    assert found == {"attention_backend": "trtllm_mha", "prefill_attention_backend": "triton"}


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        (CAUSAL, {}),
        (TWO_WAY, {"language_model_only": True}),
        (TWO_WAY, {"enable_multimodal": False}),
        (TWO_WAY, {"prefill_attention_backend": "fa4"}),
        (TWO_WAY, {"attention_backend": "trtllm_mha"}),
    ],
)
def test_nothing_changes(monkeypatch: pytest.MonkeyPatch, config: Any, asked: dict[str, Any]) -> None:
    assert "prefill_attention_backend" not in resolve(monkeypatch, config, blackwell=True, **asked)
    assert resolve(monkeypatch, TWO_WAY, blackwell=False, **asked).get("prefill_attention_backend") is None
