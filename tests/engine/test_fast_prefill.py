"""Fast prefill (YOCO) on tiny-e2b in float32: the answers of a prefill through all layers and of transformers, from fewer rows."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from crash_repro import case
from sglang_gemma4.tiny import families, images
from tests.harness.checkpoints import text_only
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.drafting import MTP
from tests.harness.instruments import row_counter
from tests.harness.left_to_sglang import left
from tests.harness.oracles.reference import CHECKPOINTS, greedy, load, text_prompts

NAME = families.TINY[1]
LAYERS, FIRST_SHARED = 10, 5
TOKENS = 10
LENGTHS = [5, 40, 90, 33]
STARTS = [0, 20, 88, -1]
"""Where each prompt's log-probabilities begin; -1: only the answer's."""
CHUNKED = {"chunked_prefill_size": 24}
DRAFT = {**MTP, "speculative_draft_model_path": CHECKPOINTS / f"{NAME}-assistant"}
ARMS: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunked": CHUNKED,
    "mixed": {**CHUNKED, "enable_mixed_chunk": True},
    "mtp": DRAFT,
    "mtp-chunked": {**CHUNKED, **DRAFT},
}

GRAPHS: dict[str, Any] = {"disable_cuda_graph": False, "disable_decode_cuda_graph": True}
"""Of prefills alone, recorded and replayed on the CPU (``recorded_graphs``)."""
GRAPHS_ON = {"SGLANG_GEMMA4_PREFILL_GRAPH": "1", "TEST_INSTRUMENTS": "recorded_graphs:counting"}


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pictures") / "red.png"
    images.draw(3, "red").resize((96, 96)).save(path)
    return str(path)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return text_prompts(NAME, LENGTHS)


QUESTION = "What is this <|image|> called by the ruler of the land?"


def groups(prompts: list[list[int]], picture: str, logprobs: bool = True) -> list[Group]:
    """A batch of unequal lengths; longer prompts that begin with its prompts and answers; scored prompts; an image beside a text."""
    sampling = {"max_new_tokens": TOKENS}
    longer = [prompt + prompts[0][1:] for prompt in prompts]
    return [
        Group(prompts, sampling, logprobs=logprobs),
        Group(longer, sampling, logprobs=logprobs),
        Group(prompts, sampling, client="generate:prompt_logprobs", extra={"starts": STARTS}, flush=True),
        Group([QUESTION, "There is no picture here."], sampling, images=[[picture], []], logprobs=logprobs),
    ]


def serve(nursery: Nursery, switch: str, asked: list[Group], other: Mapping[str, str] | None = None, **options: Any) -> list[list[Output]]:
    env = {"SGLANG_GEMMA4_YOCO": switch, "TEST_INSTRUMENTS": "row_counter:install", **(other or {})}
    return nursery.run(CHECKPOINTS / NAME, asked, env=env, **options)


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]], picture: str) -> list[list[list[int]]]:
    """What transformers says in the first, second and last group."""
    from PIL import Image
    from transformers import AutoProcessor

    model, processor = load(NAME), AutoProcessor.from_pretrained(CHECKPOINTS / NAME)
    first, second, _, last = groups(prompts, picture)
    text = [[greedy(model, {"input_ids": torch.tensor([prompt])}, TOKENS) for prompt in group.prompts] for group in (first, second)]
    seen = [
        processor(text="<bos>" + QUESTION, images=[Image.open(picture)], return_tensors="pt"),
        processor(text=f"<bos>{last.prompts[1]}", return_tensors="pt"),
    ]
    return [*text, [greedy(model, dict(inputs), TOKENS) for inputs in seen]]


@pytest.fixture(scope="module")
def scores(prompts: list[list[int]]) -> list[list[float]]:
    """transformers' log-probability of every token of every prompt but its first."""
    model = load(NAME)
    with torch.no_grad():
        rows = [model(input_ids=torch.tensor([prompt])).logits[0].log_softmax(-1) for prompt in prompts]
    return [row[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist() for row, prompt in zip(rows, prompts, strict=True)]


@pytest.mark.parametrize("arm", ARMS)
def test_the_same_answers(
    arm: str, nursery: Nursery, prompts: list[list[int]], picture: str, expected: list[list[list[int]]], scores: list[list[float]]
) -> None:
    asked = groups(prompts, picture, logprobs=arm != "mixed")  # SGLang mixes no batch that returns log-probabilities
    ours, stock = (serve(nursery, switch, asked, **ARMS[arm]) for switch in "10")
    for group, other in zip(ours, stock, strict=True):
        for one, reference in zip(group, other, strict=True):
            assert one.token_ids == reference.token_ids
            assert one.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
            assert one.meta_info.get("spec_verify_ct") == reference.meta_info.get("spec_verify_ct")
    assert [[one.token_ids for one in ours[number]] for number in (0, 1, 3)] == expected
    assert any(one.meta_info["cached_tokens"] for one in ours[1])
    for one, reference, score, start in zip(ours[2], stock[2], scores, STARTS, strict=True):
        assert one.meta_info["prompt"] == pytest.approx(score[start:] if start >= 0 else [], abs=1e-4)
        assert torch.tensor(one.meta_info["top"]).allclose(torch.tensor(reference.meta_info["top"]), atol=1e-4)
    log = ours[0][0].log
    assert [bool(re.search(r"switched off: .*\byoco\b", one[0][0].log)) for one in (ours, stock)] == [False, True]
    assert "yoco" not in left(log)
    assert ("beside a middle chunk" in log) is (arm == "mixed")
    assert all(len({rows for rows, _ in prefill}) == 1 and len(prefill) == LAYERS for prefill in row_counter.prefills(stock[0][0].log))


def test_the_sharing_layers_see_what_is_read(nursery: Nursery, prompts: list[list[int]]) -> None:
    one = Group([prompts[2]])
    batch = Group(prompts[:2])
    scored = Group([prompts[2]], client="generate:prompt_logprobs", extra={"starts": [70]})
    log = serve(nursery, "1", [one, batch, scored], chunked_prefill_size=32, disable_radix_cache=True)[0][0].log
    seen = row_counter.prefills(log)
    assert all(rows == prefill[0] for prefill in seen for rows in prefill[:FIRST_SHARED])
    short = [(prefill[0][0], prefill[FIRST_SHARED:]) for prefill in seen]
    nothing: list[tuple[int, str]] = []
    last, both = [(1, "DECODE")] * FIRST_SHARED, [(2, "DECODE")] * FIRST_SHARED
    # 90 tokens in chunks of 32, 32 and 26; 5 and 27 tokens, then 13; 64 tokens without a score, 26 with 20 scores.
    assert short[:3] == [(32, nothing), (32, nothing), (26, last)]
    assert short[3:5] == [(32, both), (13, last)]
    assert [rows for rows, _ in short[5:]] == [32, 32, 26]
    assert short[5:7] == [(32, nothing), (32, nothing)]
    assert short[7][1] == [(20, "EXTEND")] * FIRST_SHARED
    alone, short_too = ["EXTEND"], ["EXTEND", "DECODE"]
    expected = [alone, alone, short_too, short_too, short_too, alone, alone, ["EXTEND", "EXTEND"]]
    assert [forward.prepared for forward in row_counter.prefill_forwards(log)] == expected


def test_between_the_pieces_of_prefill_graphs(
    nursery: Nursery, prompts: list[list[int]], picture: str, expected: list[list[list[int]]], scores: list[list[float]]
) -> None:
    """The layers that own KV are replayed with padded rows; those that share it see what is read, decode rows beside chunks included."""
    options = {**GRAPHS, "chunked_prefill_size": 24, "enable_mixed_chunk": True}
    found = serve(nursery, "1", groups(prompts, picture, logprobs=False), GRAPHS_ON, **options)
    assert [[one.token_ids for one in found[number]] for number in (0, 1, 3)] == expected
    for one, score, start in zip(found[2], scores, STARTS, strict=True):
        assert one.meta_info["prompt"] == pytest.approx(score[start:] if start >= 0 else [], abs=1e-4)
    log = found[0][0].log
    assert "yoco" not in left(log)
    launched = "the layers that share KV are launched one by one: Gemma4CpuAttention is not the triton backend"
    assert left(log)["yoco_graph"].count(launched) == 1
    assert "beside a middle chunk" in log
    replays = [forward for forward in row_counter.prefill_forwards(log) if forward.replayed]
    for forward in replays:
        # Nothing is said of the replayed layers: they are operators on tensors by then.
        assert [layer for layer, _, _ in forward.layers] in ([], list(range(FIRST_SHARED, LAYERS)))
        assert forward.prepared == [forward.mode, *{mode for _, _, mode in forward.layers}]
        assert all(rows <= len(prompts) for _, rows, mode in forward.layers if mode == "DECODE")
    assert {tuple(forward.prepared) for forward in replays} == {
        *[("EXTEND",), ("EXTEND", "DECODE"), ("EXTEND", "EXTEND"), ("MIXED", "DECODE")],
    }


def test_the_same_answers_on_triton(
    interpreting: Nursery, prompts: list[list[int]], expected: list[list[list[int]]], scores: list[list[float]]
) -> None:
    """With every index that attention follows checked, in the short part too; the last group's prefill is replayed from a graph."""
    new = 3
    starts = [prompts[0], prompts[1]]
    asked = [
        Group(starts, {"max_new_tokens": new}),
        Group(starts, {"max_new_tokens": new}, client="generate:prompt_logprobs", extra={"starts": STARTS[:2]}, flush=True),
        Group(starts[1:], {"max_new_tokens": new}, client="generate:prompt_logprobs", extra={"starts": STARTS[1:2]}, flush=True),
    ]
    env = {**GRAPHS_ON, "SGLANG_GEMMA4_YOCO": "1", "SGLANG_GEMMA4_DEBUG": "1"}
    env["SGLANG_GEMMA4_ATTENTION"] = "1"
    options = {**GRAPHS, "attention_backend": "triton", "chunked_prefill_size": 42, "cuda_graph_bs_prefill": [40], "time_limit": 400}
    answers = interpreting.run(CHECKPOINTS / NAME, asked, env=env, **options)
    first, second = (tokens[:new] for tokens in expected[0][:2])
    assert [[one.token_ids for one in group] for group in answers] == [[first, second], [first, second], [second]]
    for one, score, start in zip([*answers[1], *answers[2]], [*scores[:2], scores[1]], [*STARTS[:2], STARTS[1]], strict=True):
        assert one.meta_info["prompt"] == pytest.approx(score[start:], abs=1e-4)
    log = answers[0][0].log
    *eager, replayed = row_counter.prefill_forwards(log)
    assert {forward.layers[-1][2] for forward in eager} == {"DECODE", "EXTEND"}
    assert not any(forward.replayed for forward in eager)
    assert (replayed.replayed, replayed.layers) == (True, [(layer, 20, "EXTEND") for layer in range(FIRST_SHARED, LAYERS)])
    assert "yoco" not in left(log)
    assert "is trapped" in log


def test_the_short_part_from_graphs_of_its_own(interpreting: Nursery, prompts: list[list[int]], expected: list[list[list[int]]]) -> None:
    """Inside a replayed prefill and, where no graph is large enough, behind an eager one; batches that fill a graph and that do not."""
    new = 3
    batches = [[prompts[3]], prompts[:3], [prompts[2]]]
    asked = [Group(batch, {"max_new_tokens": new}, flush=True) for batch in batches]
    env = {**GRAPHS_ON, "TEST_INSTRUMENTS": "recorded_graphs:rerunning", "SGLANG_GEMMA4_YOCO": "1"}
    env["SGLANG_GEMMA4_ATTENTION"] = "1"
    options = {**GRAPHS, "attention_backend": "triton", "cuda_graph_bs_prefill": [40], "time_limit": 400}
    answers = interpreting.run(CHECKPOINTS / NAME, asked, env=env, **options)
    of_prompt = [tokens[:new] for tokens in expected[0]]
    assert [[one.token_ids for one in group] for group in answers] == [[of_prompt[3]], of_prompt[:3], [of_prompt[2]]]
    log = answers[0][0].log
    assert re.search(r"4 graphs of the layers that share KV took [\d.]+ s, for 1, 2, 4, 8 requests", log)
    assert not left(log)
    forwards = row_counter.prefill_forwards(log)
    assert {forward.replayed for forward in forwards} == {True, False}
    assert all(forward.prepared == ["EXTEND"] for forward in forwards), "the graphs hold the short part's metadata"
    assert set(re.findall(r"^RERUN (\d+)$", log, re.MULTILINE)) >= {"1"}
    assert len(re.findall(r"^RERUN ", log, re.MULTILINE)) == len(forwards)


def test_hidden_states_of_every_row_go_through_every_layer(
    nursery: Nursery, prompts: list[list[int]], expected: list[list[list[int]]]
) -> None:
    """In a replay and, of a prompt longer than any graph, outside."""
    short, long = prompts[0], prompts[2]
    asked = [Group([prompt], {"max_new_tokens": TOKENS}) for prompt in (short, long)]
    options = {**GRAPHS, "cuda_graph_bs_prefill": [8], "enable_return_hidden_states": True, "disable_radix_cache": True}
    found = serve(nursery, "1", asked, GRAPHS_ON, **options)
    assert [one.token_ids for (one,) in found] == [expected[0][0], expected[0][2]]
    assert "a prefill goes through all layers: hidden states of every row are asked for" in left(found[0][0].log)["yoco"]
    replayed, eager = row_counter.prefill_forwards(found[0][0].log)
    assert (replayed.replayed, eager.replayed) == (True, False)
    assert replayed.layers == [(layer, len(short), "EXTEND") for layer in range(FIRST_SHARED, LAYERS)]
    assert eager.layers == [(layer, len(long), "EXTEND") for layer in range(LAYERS)]


def test_a_text_only_checkpoint(nursery: Nursery, tmp_path: Path) -> None:
    model = case.text_model(NAME)
    env = {"SGLANG_GEMMA4_YOCO": "1", "TEST_INSTRUMENTS": "row_counter:install"}
    group = Group(case.PROMPTS, {"max_new_tokens": case.TOKENS})
    answers = nursery.run(text_only.save(model, tmp_path), [group], env=env, chunked_prefill_size=16)[0]
    assert [answer.token_ids for answer in answers] == case.greedy(model)
    assert any(len(prefill) < len(model.model.layers) for prefill in row_counter.prefills(answers[0].log))
