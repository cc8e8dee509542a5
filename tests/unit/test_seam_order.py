"""What several parts do to one function of SGLang comes in one order, which each seam's function says why it has."""

import inspect
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from sglang.srt.plugins.hook_registry import HookRegistry

from sglang_gemma4.diagnostics.targets import inner_first
from sglang_gemma4.models import attention_backends, build, experts
from sglang_gemma4.patches import load_all
from sglang_gemma4.patches.order import ORDER, Shared
from sglang_gemma4.patching.hooks import Prepared, Seam, install
from sglang_gemma4.speculative import acceptance_path, prompts, workers

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
    "speculative.acceptance_path:sample": [("chain_acceptance", "verify_penalties"), ("verify_penalties", "verify_cuts")],
    "speculative.prompts:capture": [
        ("flash_in_graphs", "prefill_graph"),
        ("prefill_graph", "yoco_graph"),
        ("yoco_graph", "prefill_beside"),
    ],
    "speculative.workers:prepare_backend": [("frozen_views", "draft_graph")],
    "speculative.workers:prepare_draft": [("frozen_chain", "draft_argmax")],
}
"""By a seam's function: a part, and one that has to come behind it."""
MODULES = {
    "models.build": build,
    "models.attention_backends": attention_backends,
    "models.experts": experts,
    "speculative.acceptance_path": acceptance_path,
    "speculative.prompts": prompts,
    "speculative.workers": workers,
}


def asked(module: ModuleType, function: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that a seam's function asks for, in its order, where none is on."""
    found: list[str] = []

    def off(name: str) -> bool:
        found.append(name)
        return False

    monkeypatch.setattr(module, "is_on", off)
    seam = getattr(module, function)
    given = [lambda *_: ("predict", "lengths", "index"), SimpleNamespace(), SimpleNamespace(), 0, SimpleNamespace(hidden_activation="")]
    kinds = [each.kind for each in inspect.signature(seam).parameters.values()]
    seam(*given[: len(given) if inspect.Parameter.VAR_POSITIONAL in kinds else len(kinds)])
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


def shared() -> dict[str, list[Seam]]:
    """Targets of several seams, with their seams."""
    found: dict[str, dict[int, Seam]] = {}
    for part in load_all():
        for seam in part.hooks:
            if isinstance(seam, Seam):
                found.setdefault(seam.target, {})[id(seam)] = seam
    return {target: list(seams.values()) for target, seams in found.items() if len(seams) > 1}


def test_every_target_of_several_seams_has_an_order() -> None:
    assert sorted(each.target for each in ORDER) == sorted(shared())


@pytest.mark.parametrize("each", ORDER, ids=lambda each: each.target.rpartition("sglang.srt.")[2])
def test_the_order_names_each_seam(each: Shared) -> None:
    seams = shared()[each.target]
    assert [seam.turn for seam in inner_first(seams) if isinstance(seam, Seam)] == sorted(seam.turn for seam in seams)
    assert {each.parts[seam.turn] for seam in seams} == set(each.parts)
    assert all(each.parts[seam.turn] == seam.parts[0] for seam in seams)


def test_seams_wrap_one_another_by_their_turn() -> None:
    """Whatever the order in which their parts are applied."""
    called: list[str] = []

    def around(name: str) -> Callable[..., Any]:
        def hook(original: Callable[..., Any], *args: Any) -> Any:
            called.append(name)
            return original(*args)

        return hook

    module = ModuleType("seams_of_a_test")
    exec("def target():\n    pass\n", vars(module))
    sys.modules[module.__name__] = module
    try:
        hooks = [Seam(f"{module.__name__}.target", "around", around(str(turn)), "", turn=turn) for turn in (2, 0, 1)]
        assert install([[Prepared(hook, module.target, hook.function, held=module.target)] for hook in hooks]) == {}
        module.target()
    finally:
        HookRegistry._hooks.pop(f"{module.__name__}.target", None)
        HookRegistry._patched.discard(f"{module.__name__}.target")
        del sys.modules[module.__name__]
    assert called == ["2", "1", "0"]
