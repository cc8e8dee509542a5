"""Image features on the card take nothing of KV where what is kept beside it has room: SGLang's own profiling at the real sizes."""

import importlib
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4 import patching
from sglang_gemma4.memory import feature_memory, fractions, model_bytes
from sglang_gemma4.memory.capacity import CARDS, GIB, Server
from sglang_gemma4.patches import load
from sglang_gemma4.patching import switches
from tests.unit.test_reserve_fallback import H200, MTP, start

PATCH = load("feature_memory")
LARGE: dict[str, Any] = {"name": "26b-a4b", **MTP}
CASES: dict[str, dict[str, Any]] = {
    "default": LARGE,
    "0.85": {**LARGE, "mem_fraction_static": 0.85},
    "0.9": {**LARGE, "mem_fraction_static": 0.9},
    "0.92": {**LARGE, "mem_fraction_static": 0.92},
    "141 GB": {**LARGE, "card": H200, "mem_fraction_static": 0.85},
    "e4b": {"name": "e4b", **MTP},
    "plain": {"name": "26b-a4b"},
    "cpu": {**LARGE, "mem_fraction_static": 0.85, "transport": "cpu"},
    "text": {**LARGE, "mem_fraction_static": 0.85, "language_model_only": True},
}
Found = dict[str, dict[str, Any]]
_found: dict[str, Found] = {}


def start_all(switch: str, extra: dict[str, str]) -> Found:
    patching.apply([PATCH], {PATCH.switch: switch, switches.STRICT: "1"})
    changed: Any = patching.declare
    changed.of_this_process = lambda: None  # else the patch is idle: there is no GPU here
    os.environ.update(extra)
    found = {}
    for name, case in CASES.items():
        outcome = patching.declare._outcomes[PATCH.name] = patching.Outcome(PATCH.name, PATCH.switch, PATCH.does, "active")
        with tempfile.TemporaryDirectory() as folder:
            found[name] = start(Path(folder), late=False, **case) | {
                "said": list(outcome.facts),
                "state": outcome.state,
                "reason": outcome.reason,
            }
    return found


@pytest.fixture
def found(in_child: Callable[[Callable[[], Any]], Any]) -> dict[str, Found]:
    """Of all cases: what stock gives, the package, and the package with a reserve that the operator chose."""
    if not _found:
        for name in ("arg_groups.pipeline", "managers.scheduler"):
            importlib.import_module(f"sglang.srt.{name}")
        for way, switch, extra in (("stock", "0", {}), ("ours", "1", {}), ("reserve", "1", {switches.RESERVE_GIB: "9"})):
            _found[way] = in_child(partial(start_all, switch, extra))
    return _found


@pytest.mark.parametrize("case", ["default", "0.85", "141 GB", "e4b", "plain"])
def test_kv_has_what_it_has_with_features_in_the_cpu_s_memory(found: dict[str, Found], case: str) -> None:
    stock, ours = found["stock"][case], found["ours"][case]
    assert 2.1 < (ours["bytes"] - stock["bytes"]) / GIB < 2.45
    assert ours["tokens"] > stock["tokens"]
    (said,) = ours["said"]
    assert said.startswith("KV gets back 2.")
    assert "GiB stay beside weights and KV, where" in said
    assert ours["fraction"] == stock["fraction"]
    if case == "0.85":  # the very bytes, but for what the process' context takes on this card
        assert ours["bytes"] / GIB == pytest.approx(found["stock"]["cpu"]["bytes"] / GIB, abs=0.01)


def test_the_calculated_reserve_and_a_margin_stay(found: dict[str, Found]) -> None:
    """At 0.9 of an H100 hardly more is kept than that, at 0.92 less: nothing is given back."""
    gained = {case: (found["ours"][case]["bytes"] - found["stock"][case]["bytes"]) / GIB for case in ("0.9", "0.92")}
    assert 0 <= gained["0.9"] < 0.5
    assert gained["0.92"] == 0
    assert found["ours"]["0.92"]["said"][0].startswith("KV gets back 0.0 of the 2.4 GiB")


@pytest.mark.parametrize("case", ["cpu", "text"])
def test_nothing_is_given_where_nothing_is_taken(found: dict[str, Found], case: str) -> None:
    stock, ours = found["stock"][case], found["ours"][case]
    assert (ours["bytes"], ours["tokens"]) == (stock["bytes"], stock["tokens"])
    assert not ours["said"]
    assert ours["reason"] == "image features take none of the GPU's memory"


def test_the_operator_s_reserve_stands(found: dict[str, Found]) -> None:
    for case in CASES:
        assert found["reserve"][case]["bytes"] == found["stock"][case]["bytes"]
    assert found["reserve"]["default"]["reason"].startswith(f"{switches.RESERVE_GIB} or the calculated reserve says what is kept")


@pytest.mark.parametrize("case", ["default", "0.85", "141 GB", "e4b"])
def test_capacity_counts_the_same(found: dict[str, Found], case: str) -> None:
    ours, words = found["ours"][case], CASES[case]
    where, server = CARDS[words.get("card", "80 GB")], Server(True, 48)
    expected = fractions.budget(model_bytes.need(words["name"]), where, server, ours["fraction"])
    assert ours["bytes"] / GIB == pytest.approx(expected / GIB, rel=0.01)


def test_given_back() -> None:
    """1 + 0.85 (1 + 0.55) GiB where 0.15 of 77 GiB are kept and 7 are needed; nothing of what is needed and 2 GiB more."""
    pool, before = GIB, 77 * GIB
    assert feature_memory.given_back(pool, 0.85, before, 7 * GIB) / GIB == pytest.approx(2.3175)
    assert feature_memory.given_back(pool, 0.85, before, 10 * GIB) / GIB == pytest.approx(0.15 * 77 + 1 - 10 - 2)
    assert feature_memory.given_back(pool, 0.85, before, 11 * GIB) == 0.0
