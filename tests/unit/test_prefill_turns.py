"""A decode step between two prefills: what SGLang's own resolution makes of a server's arguments, model by model."""

import importlib
import os
from collections.abc import Callable
from typing import Any

import pytest

from sglang_gemma4.patches import load
from sglang_gemma4.patching import switches
from sglang_gemma4.speculative import beside_bounds
from tests.harness import applied
from tests.harness.oracles.reference import CHECKPOINTS

PART = load("prefill_turns")
CASES: dict[str, tuple[str, dict[str, Any], dict[str, str], int]] = {
    "E2B": ("tiny-e2b", {}, {}, 1),
    "latency": ("tiny-e2b", {}, {switches.BESIDE_GAP: "latency"}, 1),
    "balanced": ("tiny-e2b", {}, {switches.BESIDE_GAP: "balanced"}, 1),
    "throughput": ("tiny-e2b", {}, {switches.BESIDE_GAP: "throughput"}, 0),
    "prompts beside, as asked": ("tiny-e2b", {}, {switches.BESIDE: "1"}, 0),
    "asked, but adapters follow one batch": ("tiny-e2b", {"enable_lora": True}, {switches.BESIDE_GAP: "100ms"}, 1),
    "asked, but ranks measure apart": ("tiny-e2b", {"tp_size": 2}, {switches.BESIDE: "1"}, 1),
    "asked, over ranks by tokens": ("tiny-e2b", {"tp_size": 2}, {switches.BESIDE_TOKENS: "512"}, 0),
    "the operator's number": ("tiny-e2b", {"prefill_decode_interval": 3}, {}, 3),
    "the operator's zero": ("tiny-e2b", {"prefill_decode_interval": 0}, {}, 0),
    "SGLang's mixed chunks": ("tiny-e2b", {"enable_mixed_chunk": True}, {}, 0),
    "a prefill server": ("tiny-e2b", {"disaggregation_mode": "prefill"}, {}, 0),
    "a decode server": ("tiny-e2b", {"disaggregation_mode": "decode"}, {}, 0),
    "12B": ("tiny-12b", {}, {}, 0),
    "26B-A4B": ("tiny-26b-a4b", {}, {}, 0),
    "31B": ("tiny-31b", {}, {}, 0),
}


def resolved(model: str, **arguments: Any) -> int:
    from sglang.srt.arg_groups import validation_hook
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.arg_groups.resolution_hooks import run_hook
    from sglang.srt.server_args import ServerArgs

    given = ServerArgs(model_path=str(CHECKPOINTS / model), device="cuda", **arguments)
    run_hook(validation_hook.default_unset_prefill_decode_interval, given)
    return int(resolving_view(given).prefill_decode_interval)


def resolve_all() -> dict[str, int]:
    applied.apply([PART])
    os.environ.pop(PART.switch, None)
    found = {}
    for name, (model, arguments, environment, _) in CASES.items():
        for variable in (switches.BESIDE_GAP, switches.BESIDE_TOKENS, switches.BESIDE):
            os.environ.pop(variable, None)
        os.environ.update(environment)
        found[name] = resolved(model, **arguments)
    return found


def test_which_servers_take_turns(in_child: Callable[[Callable[[], Any]], Any]) -> None:
    importlib.import_module("sglang.srt.arg_groups.pipeline")
    assert in_child(resolve_all) == {name: expected for name, (*_, expected) in CASES.items()}


@pytest.mark.parametrize(("word", "bound"), list(beside_bounds.POLICIES.items()))
def test_words(word: str, bound: beside_bounds.Gap) -> None:
    assert beside_bounds.gap({switches.BESIDE_GAP: word}) is bound
    assert beside_bounds.problems({switches.BESIDE_GAP: word}) == []
