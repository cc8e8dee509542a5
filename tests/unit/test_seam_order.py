"""What several parts do to one function of SGLang comes in one order, which each seam's function says why it has."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4.models import attention_backends, build, experts
from sglang_gemma4.patches import load_all

LATER = {
    "models.build:prepare": [
        ("register_products", "dense_copies"),
        ("few_row_linear", "router_choice"),
        ("layer_tail", "dense_beside_experts"),
        ("few_row_linear", "dense_beside_experts"),
        ("router_choice", "dense_beside_experts"),
    ],
    "models.attention_backends:prepare_triton": [
        ("kv_formats", "flash_prefill"),
        ("prefill_attention", "flash_prefill"),
        ("kv_formats", "verify_attention"),
    ],
    "models.experts:prepare": [
        ("grouped_experts", "prefill_experts"),
        ("prefill_experts", "chunk_experts"),
        ("expert_gelu", "grouped_experts"),
    ],
}
"""By a seam's function: a part, and one that has to come behind it."""
MODULES = {"models.build": build, "models.attention_backends": attention_backends, "models.experts": experts}


def asked(module: ModuleType, function: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that a seam's function asks for, in its order, where none is on."""
    found: list[str] = []

    def off(name: str) -> bool:
        found.append(name)
        return False

    monkeypatch.setattr(module, "is_on", off)
    getattr(module, function)(None, SimpleNamespace(), SimpleNamespace(), 0, SimpleNamespace(hidden_activation=""))
    return found


@pytest.mark.parametrize("place", LATER)
def test_a_seam_asks_for_its_parts_in_order(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function = place.split(":")
    found = asked(MODULES[module], function, monkeypatch)
    declared = {part for patch in load_all() for seam in patch.hooks if _place(seam) == f"sglang_gemma4.{place}" for part in seam.parts}
    assert set(found) == declared
    assert len(found) == len(set(found))
    for first, later in LATER[place]:
        assert found.index(first) < found.index(later), f"{later} comes behind {first}"


def _place(seam: Any) -> str:
    function = getattr(seam, "function", None)
    return function if isinstance(function, str) else f"{getattr(function, '__module__', '')}:{getattr(function, '__name__', '')}"
