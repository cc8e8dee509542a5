"""Joined forwards as one graph each, attention inside: on the CPU its Python runs again, interpreted, on the tensors of the capture.

Whatever a replay reads that is not at a fixed address is that of the capture, in which there was no request.
"""

import json
import re
from typing import Any

import pytest

from sglang_gemma4.patching import switches
from tests.engine.test_prefill_beside import ENGINE, SWITCH, joined
from tests.harness.engine_fork import Nursery, Output
from tests.harness.inputs.mtp_cases import MTP, greedy, timed
from tests.harness.instruments import flash_standin
from tests.harness.left_to_sglang import left
from tests.harness.oracles.reference import CHECKPOINTS, text_prompts

GRAPHS: dict[str, Any] = {
    "disable_overlap_schedule": False,
    "disable_cuda_graph": False,
    "disable_decode_cuda_graph": True,
    "cuda_graph_bs_prefill": [64],  # pieces of few rows launch kernels, which are not recorded
    "chunked_prefill_size": 64,
    "max_total_tokens": 1200,
    "max_running_requests": 4,
}
INT8 = "int8_per_token_head"
UNIFIED = "in one memory"
"""In the place of a cache's format: ``--enable-unified-memory``, whose slots are translated and whose rows are further apart."""
CASES: dict[str, tuple[str, bool, str, str]] = {
    "26b-mtp": ("tiny-26b-a4b", True, "0", "auto"),
    "26b-plain-kv-write": ("tiny-26b-a4b", False, "1", "auto"),
    "26b-mtp-int8": ("tiny-26b-a4b", True, "0", INT8),
    "26b-plain-kv-write-int8": ("tiny-26b-a4b", False, "1", INT8),
    "26b-mtp-unified": ("tiny-26b-a4b", True, "0", UNIFIED),
    "26b-plain-kv-write-unified": ("tiny-26b-a4b", False, "1", UNIFIED),
}


def serve(
    family: str, drafts: bool, lengths: list[int], env: dict[str, str], interpreting: Nursery, nursery: Nursery, cache: str = "auto"
) -> tuple[list[Output], list[Output]]:
    """Answers with joined forwards in graphs, and in turn without graphs.

    Two prompts come at once while another request runs, one again with more text (a cached prefix), longer than a chunk.
    """
    texts = text_prompts(family, lengths)
    asked: list[dict[str, Any]] = [{"rid": "long"}, *({"rid": f"gate2.short-{n}", "after": ["long", 2]} for n in range(2))]
    asked.append({"rid": "again", "after": ["gate2.short-0", -1]})
    prompts = [*texts[:3], [*texts[1], *texts[3]]]
    groups = {"all": timed(prompts, [greedy(tokens) for tokens in (24, 3, 4, 3)], asked)}
    engine: dict[str, Any] = {**ENGINE, **GRAPHS, "kv_cache_dtype": "auto" if cache == UNIFIED else cache}
    if drafts:
        engine |= {**MTP, "speculative_draft_model_path": CHECKPOINTS / f"{family}-assistant", "disable_overlap_schedule": False}
    plain = {SWITCH: "0", "TEST_INSTRUMENTS": "beside_trace:overlapped"}
    expected = nursery.run(CHECKPOINTS / family, list(groups.values()), plain, 400.0, **{**engine, "disable_cuda_graph": True})[0]
    env = {SWITCH: "1", switches.BESIDE_TOKENS: "4096", "TEST_INSTRUMENTS": "recorded_graphs:whole", "SGLANG_GEMMA4_ATTENTION": "1", **env}
    engine |= {"attention_backend": "triton", "enable_unified_memory": cache == UNIFIED}
    found = interpreting.run(CHECKPOINTS / family, list(groups.values()), env, 600.0, **engine)[0]
    assert ("UNIFIED MEMORY POOL ENABLED" in found[0].log) is (cache == UNIFIED)
    told = r"^(?:BESIDE|RERUN|REPLAYED|FLASH).*$|^.*(?:prefill_beside|flash_).*$|^.*pieces.*$|^  File.*\n.*|^KeyError.*$"
    print("\n".join(re.findall(told, found[0].log, re.MULTILINE)))
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    assert "graphs of whole mixed batches took" in found[0].log
    if drafts:
        counts = [[output.meta_info["spec_correct_drafts_histogram"] for output in answers] for answers in (found, expected)]
        assert counts[0] == counts[1]
    return found, expected


@pytest.mark.parametrize("case", list(CASES))
def test_tokens_are_those_of_steps_in_turn(case: str, interpreting: Nursery, nursery: Nursery) -> None:
    family, drafts, writes, cache = CASES[case]
    env = {}
    if writes == "1":  # the launch that norms and rotates writes keys and values into the pool too
        env["SGLANG_GEMMA4_WITHOUT"] = "draft_argmax,grouped_experts"
    log = serve(family, drafts, [20, 40, 12, 75], env, interpreting, nursery, cache)[0][0].log
    small = [step for step in joined(log) if sum(step.rows) <= 64]
    assert any(len(step.prefilled) == 2 for step in small), "two prompts in one graph"
    assert any(step.prefilled == ["again"] for step in small), "behind a cached prefix"
    assert len(re.findall(r"^RERUN 64$", log, re.MULTILINE)) == len([step for step in small if sum(step.rows) >= 32])


@pytest.mark.parametrize(
    ("fails", "cache"),
    [(False, "auto"), (True, "auto"), (False, INT8), (False, UNIFIED)],
    ids=["captured", "not-captured", "int8", "unified"],
)
def test_prompts_full_layers_by_flash_attention(fails: bool, cache: str, interpreting: Nursery, nursery: Nursery) -> None:
    """With a stand-in for it (``flash_standin``): several prompts, chunks of one behind a cached prefix, graphs that are not full.

    Where it cannot be captured our kernel is.
    """
    family = "tiny-26b-a4b"
    env = {"SGLANG_GEMMA4_FLASH_PREFILL": "1", switches.BESIDE_TOKENS: "56"}
    env["TEST_INSTRUMENTS"] = f"recorded_graphs:whole flash_standin:{'failing' if fails else 'in_graphs'}"
    log = serve(family, True, [20, 40, 12, 111], env, interpreting, nursery, cache)[0][0].log
    steps = [step for step in joined(log) if 32 <= sum(step.rows) <= 64]
    replays = len(re.findall(r"^RERUN 64$", log, re.MULTILINE))
    assert replays == len(steps) >= 3
    assert any(len(step.prefilled) == 2 for step in steps), "two prompts in one graph"
    assert len([step for step in steps if step.prefilled == ["again"]]) == 2, "behind a radix hit, and behind a chunk too"
    assert any(sum(step.rows) < 64 for step in steps), "rows of nobody"
    kinds = json.loads((CHECKPOINTS / family / "config.json").read_text())["text_config"]["layer_types"]
    launches = 0 if fails else kinds.count("full_attention") * (1 + replays)
    room = 64 + flash_standin.PREFIX_KEYS
    assert re.findall(rf"^FLASH 64 {room}$", log, re.MULTILINE) == [f"FLASH 64 {room}"] * launches
    said = "our kernel computes the prompts' full layers in graphs: RuntimeError: not while capturing\n"
    assert left(log)["flash_in_graphs"].count(said) == fails
    said = "FlashAttention-4 computes the prompts' full layers in graphs of 64 rows and more, behind up to 256 cached keys"
    assert log.count(said) == (not fails)
