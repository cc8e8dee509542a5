"""An engine that is forked with its patches in place is like one whose process has placed them: ``nursery.Patched``."""

import pytest

from sglang_gemma4.patches import load_all
from sglang_gemma4.patching import switches
from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import EngineFailed, Group, Nursery, Output, without

ENVIRONMENTS: list[dict[str, str]] = [
    {},
    {switches.MASTER: "0"},
    # Switches, and patches by their names.
    {
        "SGLANG_GEMMA4_YOCO": "0",
        "SGLANG_GEMMA4_FORCE_EAGLE": "1",
        **without("kv_write", "answer_parser"),
    },
]
ITS_OWN = "SGLANG_RUN_ID"
"""A variable that SGLang draws anew in every process that launches an engine."""


def told(nursery: Nursery, env: dict[str, str], own_patches: bool) -> Output:
    """What an engine says of itself."""
    group = Group([list(range(20, 44))], client="patch_states:processes")
    ((answer,),) = nursery.run(resolve("tiny-e2b"), [group], env, own_patches=own_patches)
    return answer


def of_patches(log: str) -> list[str]:
    """What placing the patches says in the log: what comes before the engine has its logger."""
    lines = log.partition("server_args=")[0].splitlines()
    told = (line.rpartition("] ")[2] for line in lines if " hooks" in line or "sglang-gemma4" in line)
    return [line for line in told if "OpenMP" not in line]  # the CPU engine says its threads without any patch


@pytest.fixture(scope="module")
def both(nursery: Nursery) -> list[tuple[Output, Output]]:
    """Under each environment an engine that placed its patches, and one that is not the first of its patched process."""
    own = [told(nursery, env, True) for env in ENVIRONMENTS]
    forked: list[list[Output]] = [[] for _ in ENVIRONMENTS]
    for number in (0, 1, 0, 1, 2, 1, 2):  # two are kept at once
        forked[number].append(told(nursery, ENVIRONMENTS[number], False))
    parents = [{answer.meta_info.pop("parent") for answer in answers} for answers in (own, *forked)]
    assert [len(of) for of in parents] == [1] * 4, "one process for each environment"
    assert len(set.union(*parents)) == 4, "none for two, and not the nursery, whose own children place their patches"
    return [(one, answers[-1]) for one, answers in zip(own, forked, strict=True)]


def test_nothing_tells_them_apart(both: list[tuple[Output, Output]]) -> None:
    """Environment, every outcome with reason and notes, hooks and what each call of a target goes through; the answer; the log."""
    for own, forked in both:
        drawn = [answer.meta_info["environment"].pop(ITS_OWN) for answer in (own, forked)]
        assert drawn[0] != drawn[1]
        assert own.meta_info.keys() == forked.meta_info.keys()
        for key in own.meta_info:
            assert forked.meta_info[key] == own.meta_info[key], key
        assert forked.token_ids == own.token_ids
        assert of_patches(forked.log) == of_patches(own.log)
    assert [bool(of_patches(forked.log)) for _, forked in both] == [True, False, True], "stock places none"


def test_each_environment_has_its_own_patches(both: list[tuple[Output, Output]]) -> None:
    """What is compared above differs between environments: none is served by the process of another."""

    def off(answer: Output) -> set[str]:
        return {row["name"] for row in answer.meta_info["outcomes"] if row["state"] == "off"}

    default, stock, switched = (forked for _, forked in both)
    assert off(stock) == {patch.name for patch in load_all() if not patch.cpu_engine}
    assert stock.meta_info["scheduler"] is None, "stock reports no patches"
    assert off(switched) == (off(default) | {"yoco", "yoco_graph", "answer_parser", "kv_write"}) - {"force_eagle"}
    target = "sglang.srt.models.gemma4_causal.Gemma4TextModel.forward"
    assert len({str(one.meta_info["leads"][target]) for one in (default, stock, switched)}) == 3


def test_an_environment_that_ends_the_process_is_said_by_the_engine(nursery: Nursery) -> None:
    """Plugins that end a patched process leave the case to an engine of its own, with the reason in its log."""
    for _ in range(2):
        with pytest.raises(EngineFailed, match="SGLANG_GEMMA4_WITHOUT: nonsense is no patch"):
            told(nursery, without("nonsense"), False)
    assert told(nursery, {}, False).token_ids
