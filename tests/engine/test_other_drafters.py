"""EAGLE-3's, DFlash's and DSpark's drafts on the CPU reference engine: the tokens of plain decoding, whatever is accepted."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_cpu_images import pictures, questions
from tests.engine.test_prefill_graph_replay import ENGINE, ON, replays
from tests.harness.checkpoints import lora_adapters, other_drafts
from tests.harness.engine_fork import EngineFailed, Group, Nursery, without
from tests.harness.oracles.reference import CHECKPOINTS, greedy_all, text_prompts

__all__ = ["pictures"]
STEPS, BLOCK, PROPOSED, TOKENS = 3, 16, 7, 40
LENGTHS = [20, 150, 90]
"""Of prompts: shorter and longer than the tiny models' window of 64."""


def eagle3(folder: Path, name: str, topk: int = 1) -> dict[str, Any]:
    draft = other_drafts.eagle3(folder, name)
    lengths = {"speculative_num_steps": STEPS, "speculative_eagle_topk": topk, "speculative_num_draft_tokens": STEPS + 1}
    return {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": draft, **lengths}


def dflash(folder: Path, name: str) -> dict[str, Any]:
    draft = other_drafts.dflash(folder, name, block=BLOCK)
    return {"speculative_algorithm": "DFLASH", "speculative_draft_model_path": draft, "speculative_dflash_block_size": BLOCK}


def dspark(folder: Path, name: str) -> dict[str, Any]:
    return {"speculative_algorithm": "DSPARK", "speculative_draft_model_path": other_drafts.dspark(folder, name, block=PROPOSED)}


DRAFTERS = {"EAGLE3": (eagle3, STEPS), "DFLASH": (dflash, BLOCK - 1), "DSPARK": (dspark, PROPOSED)}


@pytest.mark.parametrize("name", ["tiny-26b-a4b", "tiny-e2b", "tiny-12b", "tiny-31b"])
def test_tokens_are_those_of_plain_decoding(name: str, nursery: Nursery, tmp_path: Path) -> None:
    """Twice: the second group's prompts are in the radix tree, with the draft's keys beside the target's."""
    prompts = text_prompts(name, LENGTHS)
    expected = greedy_all(name, prompts, TOKENS)
    group = Group(prompts, {"max_new_tokens": TOKENS, "ignore_eos": True})
    for kind, (arguments, drafts) in DRAFTERS.items():
        answers = nursery.run(CHECKPOINTS / name, [group, group], **arguments(tmp_path / kind, name))
        for group_answers in answers:
            assert [answer.token_ids for answer in group_answers] == expected, kind
        found = [answer.meta_info for answer in answers[0]]
        assert sum(meta["spec_num_proposed_drafts"] for meta in found) == drafts * sum(meta["spec_verify_ct"] for meta in found) > 0
        assert any(meta["cached_tokens"] for meta in (answer.meta_info for answer in answers[1]))
        if kind != "EAGLE3":
            assert sum(meta["spec_num_correct_drafts"] for meta in found) > 0, "none of the drafts was accepted"


@pytest.mark.parametrize("more", [{"chunked_prefill_size": 64}, {"page_size": 16}, {"speculative_draft_window_size": 32}], ids=str)
def test_chunks_pages_and_a_window_of_the_draft(more: dict[str, Any], nursery: Nursery, tmp_path: Path) -> None:
    """DSpark's drafts have no window."""
    name = "tiny-26b-a4b"
    prompts = text_prompts(name, LENGTHS)
    expected = greedy_all(name, prompts, TOKENS)
    for kind, (arguments, _) in DRAFTERS.items():
        if kind == "DSPARK" and "speculative_draft_window_size" in more:
            continue
        (answers,) = nursery.run(
            CHECKPOINTS / name,
            [Group(prompts, {"max_new_tokens": TOKENS, "ignore_eos": True})],
            **arguments(tmp_path / kind, name),
            **more,
        )
        assert [answer.token_ids for answer in answers] == expected, kind


def test_trees_are_refused_by_name(nursery: Nursery, tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="--speculative-eagle-topk 2: the CPU reference engine drafts chains with EAGLE3"):
        nursery.run(CHECKPOINTS / "tiny-26b-a4b", [Group([[2, 300]])], **eagle3(tmp_path, "tiny-26b-a4b", topk=2))


@pytest.mark.parametrize("overlapped", [False, True], ids=["synchronous", "overlapped"])
def test_penalties_and_cuts_act_as_in_plain_decoding(overlapped: bool, nursery: Nursery, tmp_path: Path) -> None:
    """Stock's DFlash and DSpark neither count nor apply a penalty, and know no min-p; ``min_p`` 1 leaves the likeliest token alone."""
    name = "tiny-26b-a4b"
    penalised = {"frequency_penalty": 0.3, "presence_penalty": 0.4, "repetition_penalty": 1.2, "min_new_tokens": 18, "ignore_eos": False}
    sampling: list[dict[str, Any]] = [penalised, {}, {"repetition_penalty": 1.5}, {"temperature": 1.0, "min_p": 1.0}]
    group = Group(text_prompts(name, [9, 40, 70, 150]), [{"max_new_tokens": 24, "ignore_eos": True, **one} for one in sampling])
    loop = {"TEST_INSTRUMENTS": "loop_modes:overlapped"} if overlapped else {}
    more = {"disable_overlap_schedule": not overlapped}
    (plain,) = nursery.run(CHECKPOINTS / name, [group])
    for kind, (arguments, _) in DRAFTERS.items():
        (answers,) = nursery.run(CHECKPOINTS / name, [group], loop, **arguments(tmp_path / kind, name), **more)
        assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain], kind
    for kind in ("DFLASH", "DSPARK"):
        given = DRAFTERS[kind][0](tmp_path / kind, name)
        (stock,) = nursery.run(CHECKPOINTS / name, [group], {**loop, **without("verify_penalties")}, **given, **more)
        assert [answer.token_ids for answer in stock] != [answer.token_ids for answer in plain]


@pytest.mark.parametrize("name", ["tiny-26b-a4b", "tiny-e2b"])
def test_images_and_replayed_prefills(name: str, nursery: Nursery, tmp_path: Path, pictures: list[str]) -> None:
    """The hidden states that a draft reads come out of a prefill's graph as out of an eager prefill."""
    texts, files = questions(pictures)
    group = Group(texts, {"max_new_tokens": 16, "ignore_eos": True}, files)
    (plain,) = nursery.run(CHECKPOINTS / name, [group])
    for kind, (arguments, _) in DRAFTERS.items():
        given = arguments(tmp_path / kind, name)
        (eager,) = nursery.run(CHECKPOINTS / name, [group], **given)
        graphs = nursery.run(CHECKPOINTS / name, [group], ON, **ENGINE, **given)
        for answers in (eager, graphs[0]):
            assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain], kind
        accepted = [[answer.meta_info["spec_correct_drafts_histogram"] for answer in answers] for answers in (eager, graphs[0])]
        assert accepted[0] == accepted[1], kind
        assert replays(graphs)


def test_adapters_beside_drafts(nursery: Nursery, tmp_path: Path) -> None:
    """An adapter is the target's alone; the request between has none."""
    name = "tiny-26b-a4b"
    prompts = text_prompts(name, [40, 90, 20])
    layers = f"{lora_adapters.TEXT}({lora_adapters.ATTENTION}|{lora_adapters.FFN})"
    adapter = lora_adapters.make(name, tmp_path / "adapter", prompts, 16, r=4, lora_alpha=8, target_modules=layers)
    expected = [adapter.answers[0], greedy_all(name, prompts[1:2], 16)[0], adapter.answers[2]]
    mixed = Group(prompts, {"max_new_tokens": 16}, client="generate:adapters", extra={"adapters": ("one", None, "one")})
    for kind, (arguments, _) in DRAFTERS.items():
        (answers,) = nursery.run(CHECKPOINTS / name, [mixed], lora_paths={"one": str(adapter.path)}, **arguments(tmp_path / kind, name))
        assert [answer.token_ids for answer in answers] == expected, kind
