"""Which servers keep SGLang's own pool sizes, and what the log says of it."""

from types import SimpleNamespace
from typing import Any

import pytest


def kvc(**changes: Any) -> Any:
    layers = SimpleNamespace(full_attention_layer_ids=[5], swa_attention_layer_ids=[0, 1])
    given = SimpleNamespace(swa_full_tokens_ratio=None)
    return SimpleNamespace(**{"pp_size": 1, "layer_info": layers, "sliding_window_size": 1024, "server_args": given, **changes})


@pytest.fixture
def configurator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with SGLang's resolved arguments as a plain server has them; ``settings`` changes them."""
    from sglang_gemma4.memory import pool_configurator

    settings = SimpleNamespace(disaggregation_mode="null", enable_unified_memory=False, chunked_prefill_size=8192)
    for name in ("get_schedule", "get_disagg", "get_memory"):
        monkeypatch.setattr(pool_configurator, name, lambda: settings)
    return SimpleNamespace(reason=pool_configurator.reason_against, settings=settings)


def test_a_plain_server_gets_pools_by_window(configurator: Any) -> None:
    assert configurator.reason(kvc()) is None


@pytest.mark.parametrize(
    ("changes", "settings", "says"),
    [
        ({"server_args": SimpleNamespace(swa_full_tokens_ratio=0.5)}, {}, "--swa-full-tokens-ratio 0.5 was given"),
        ({"pp_size": 2}, {}, "pipeline stages"),
        ({"sliding_window_size": None}, {}, "no window"),
        ({}, {"disaggregation_mode": "decode"}, "requests in transfer"),
        ({}, {"enable_unified_memory": True}, "--enable-unified-memory"),
        ({}, {"chunked_prefill_size": -1}, "not chunked"),
    ],
)
def test_reasons_to_leave_the_pools_alone(changes: dict[str, Any], settings: dict[str, Any], says: str, configurator: Any) -> None:
    vars(configurator.settings).update(settings)
    assert says in configurator.reason(kvc(**changes))


def test_a_resize_after_capture_declines(configurator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "1")
    assert "resizes both pools" in configurator.reason(kvc())
