"""``models/derived.py`` lists every tensor that the package has beside SGLang's own, and nothing that is not there.

The models of an engine with every path that Triton's interpreter can take are walked, and those of an engine with none of them. A tensor
that SGLang neither registers nor holds in one that it does must have an entry: a new copy, packed weight, table or buffer fails here.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from crash_repro.engines import package_with
from sglang_gemma4.models.derived import DERIVED, entry
from sglang_gemma4.tiny import checkpoints
from tests.engine.test_everything_on import FASTER
from tests.harness.engine_fork import Group, Nursery, without
from tests.harness.inputs.drafting import MTP

FAMILIES = ("tiny-e2b", "tiny-26b-a4b", "tiny-31b")
NOT_HERE = ("[kv]_scale", r"\.room", r"\.copy")
"""Ends of entries that no tiny family has: a calibrated KV cache is one of a card's, and none of these has 4-bit weights."""
WALK = Group([], client="weight_changes:play", extra={"steps": [["walk", {}]]})


def walk(nursery: Nursery, family: str, env: dict[str, str], instruments: str = "", **engine: Any) -> dict[str, Any]:
    """By role, what ``weight_walk`` saw before any request."""
    model = checkpoints.SHIPPED / family
    options = {**MTP, "speculative_draft_model_path": f"{model}-assistant", **engine}
    answer = nursery.run(model, [WALK], {**env, "TEST_INSTRUMENTS": f"weight_walk:install{instruments}"}, **options)[0][0]
    found: dict[str, Any] = answer.meta_info["replies"][0]
    return found


@dataclass
class Found:
    """Paths of tensors from their models: all, and those whose memory stock SGLang does not register under a name that it has."""

    everything: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)


def beside_stock(full: dict[str, Any], plain: dict[str, Any]) -> Found:
    """What a walk found that one of an engine without the package's paths has not."""
    assert full.keys() == plain.keys() == {"target", "draft"}
    found = Found()
    for role, seen in full.items():
        known = {memory for name, memory in seen["registered"].items() if name in plain[role]["registered"]}
        assert len(known) > 40
        found.everything |= seen["tensors"].keys()
        found.own |= {path for path, (*_, memory) in seen["tensors"].items() if memory not in known}
    return found


@pytest.fixture(scope="module")
def plain(nursery: Nursery) -> dict[str, dict[str, Any]]:
    """By family, the walk of an engine with none of the package's paths."""
    stock = package_with("sync_mtp", "preflight")
    return {family: walk(nursery, family, stock) for family in FAMILIES}


@pytest.fixture(scope="module")
def ours(plain: dict[str, dict[str, Any]], interpreting: Nursery) -> dict[str, Found]:
    """By family, what an engine with every path has."""
    every = {f"SGLANG_GEMMA4_{name}": "1" for name in (*FASTER, "DENSE_OVERLAP")} | without()
    return {family: beside_stock(walk(interpreting, family, every, attention_backend="triton"), plain[family]) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_ours_has_an_entry(ours: dict[str, Found], family: str) -> None:
    assert {path for path in ours[family].own if entry(path) is None} == set()


def test_every_entry_is_of_some_family(ours: dict[str, Found]) -> None:
    own = set().union(*(found.own for found in ours.values()))
    everything = set().union(*(found.everything for found in ours.values()))
    unmet = [one.path for one in DERIVED if not any(re.fullmatch(one.path, path) for path in (own if one.own else everything))]
    assert [path for path in unmet if not path.endswith(NOT_HERE)] == []


def test_a_copy_that_is_not_listed_is_found(plain: dict[str, dict[str, Any]], nursery: Nursery) -> None:
    seen = walk(nursery, "tiny-31b", {}, instruments=" weight_walk:stray")
    strays = {path for path in beside_stock(seen, plain["tiny-31b"]).own if entry(path) is None}
    assert strays == {"language_model.layers.2.self_attn.forward.func.<packed>", "language_model.layers.3.mlp.packed.0"}
