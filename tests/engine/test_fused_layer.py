"""A decoder layer in fewer launches, interpreted, in float32: the tokens, log-probabilities and verify steps of SGLang's own layer."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import Group, Nursery, Output, without
from tests.harness.inputs.drafting import MTP, with_assistant
from tests.harness.left_to_sglang import left

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(6 + 9 * n))] for n in range(3)]
PATCHES = {"triple_norm", "layer_tail", "ple_tail", "qkv_rope"}
OTHERS = ("kv_write", "draft_argmax", "grouped_experts")
LAUNCHED = {
    "tiny-26b-a4b": {"triple_rmsnorm", "dual_tail", "tail", "qkv_norm_rope"},  # tail: the draft's dense layers
    "tiny-e2b": {"triple_rmsnorm", "tail", "gated_embedding", "qkv_norm_rope"},
    "tiny-31b": {"triple_rmsnorm", "tail", "qkv_norm_rope"},
}
KERNELS = set().union(*LAUNCHED.values())
HANDED_OUT = {"tiny-26b-a4b": 6 * 3 + 4, "tiny-e2b": 10 + 4, "tiny-31b": 6 + 4}
"""Norms computed ahead: of each MoE layer the router's, the experts' and the next one's, of each other the next one's; draft 4 layers."""


def serve(nursery: Nursery, name: str, mtp: bool, *off: str, others: tuple[str, ...] = OTHERS) -> list[Output]:
    model = resolve(name)
    options: dict[str, Any] = with_assistant(model) if mtp else {}
    env = {"SGLANG_GEMMA4_NORMS": "1", **without(*off, *others)}
    env["TEST_INSTRUMENTS"] = "fused_layer_counter:install"
    group = Group(PROMPTS, {"max_new_tokens": 12}, logprobs=True)
    return nursery.run(model, [group], env=env, time_limit=400, **options)[0]


@pytest.mark.parametrize("name", LAUNCHED)
def test_same_tokens_as_sglang_s_layer(interpreting: Nursery, name: str) -> None:
    stock = serve(interpreting, name, True, *PATCHES)
    assert set(re.findall(r"LAUNCHED (\w+)", stock[0].log)) == {"store_kvcache"}
    ours, plain = serve(interpreting, name, True), serve(interpreting, name, False)
    for kernel in KERNELS:
        assert (f"LAUNCHED {kernel}." in ours[0].log) == (kernel in LAUNCHED[name])
    assert f"HANDED OUT {HANDED_OUT[name]} norms" in ours[0].log
    assert f"HANDED OUT {HANDED_OUT[name] + 1} norms" not in ours[0].log
    assert set(left(ours[0].log)) <= {"shared_query", "yoco"}, "where no layer shares KV"
    for answer, alone, reference in zip(ours, plain, stock, strict=True):
        assert answer.token_ids == alone.token_ids == reference.token_ids
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
        assert answer.meta_info["spec_verify_ct"] == reference.meta_info["spec_verify_ct"] < len(answer.token_ids), "drafts were accepted"


@pytest.mark.parametrize("name", ["tiny-26b-a4b"])
def test_one_switch_alone(interpreting: Nursery, name: str) -> None:
    """Each patch works without the others: the tail offers a norm that stock's layer takes, the triple norm's are taken by stock's."""
    stock = serve(interpreting, name, False, *PATCHES)
    for alone in ("triple_norm", "layer_tail"):
        ours = serve(interpreting, name, False, *PATCHES - {alone})
        assert f"HANDED OUT {12 if alone == 'triple_norm' else 6} norms" in ours[0].log
        assert [answer.token_ids for answer in ours] == [answer.token_ids for answer in stock]


def test_without_triton_the_layer_is_sglang_s(nursery: Nursery) -> None:
    """On a CPU no kernel runs: each patch says so once and leaves the layer as it is."""
    ours = serve(nursery, "tiny-e2b", True, others=())
    stock = serve(nursery, "tiny-e2b", True, *PATCHES)
    for name in ("triple_norm", "layer_tail", "ple_tail", "qkv_rope"):
        assert left(ours[0].log)[name].count("Triton does not run on cpu") == 1
    assert left(ours[0].log)["kv_write"].count("SGLang's norms and rotation run: Triton does not run on cpu") == 1
    assert set(re.findall(r"LAUNCHED (\w+)", ours[0].log)) == {"store_kvcache"}
    assert "HANDED OUT" not in ours[0].log
    assert [(one.token_ids, one.logprobs) for one in ours] == [(other.token_ids, other.logprobs) for other in stock]


LONG = [2, *((11 * i) % 700 + 300 for i in range(40))]
TURNS = [LONG[:30], [2, 410, 500]], [LONG]
"""The second turn's prompt begins with the first's, whose keys and values are in the pool."""


@pytest.mark.parametrize(("name", "page", "mtp"), [("tiny-26b-a4b", 1, True), ("tiny-e2b", 4, False)])
def test_keys_and_values_written_where_sglang_writes_them(interpreting: Nursery, name: str, page: int, mtp: bool) -> None:
    """Prefill in chunks, decode or verify, and a later request that reads what an earlier one left in the pool."""
    model = resolve(name)
    options: dict[str, Any] = {"attention_backend": "triton", "chunked_prefill_size": 20, "page_size": page}
    options |= with_assistant(model) if mtp else {}
    answers = []
    for switch in "10":
        env = {"SGLANG_GEMMA4_ATTENTION": "1", **without("draft_argmax", "grouped_experts", *["kv_write"][int(switch) :])}
        env["TEST_INSTRUMENTS"] = "fused_layer_counter:install"
        groups = [Group(turn, {"max_new_tokens": 4}, logprobs=True) for turn in TURNS]
        first, second = interpreting.run(model, groups, env=env, time_limit=400, **options)
        assert ("LAUNCHED store_kvcache." in first[0].log) == (switch == "0"), "the pool's own write"
        assert ("LAUNCHED kv_write." in first[0].log) == (switch == "1")
        assert "kv_write" not in left(first[0].log)
        assert second[0].meta_info["cached_tokens"] >= 28
        answers.append([*first, *second])
    for ours, stock in zip(*answers, strict=True):
        assert ours.token_ids == stock.token_ids
        assert ours.logprobs == stock.logprobs, "the pool holds the same bits"


def test_layers_that_share_kv_get_a_verify_step_s_own_from_the_layer_that_computed_them(interpreting: Nursery) -> None:
    """The pool holds the same bits: 10 layers of tiny-e2b in a verify step do not read them back."""
    model = resolve("tiny-e2b")
    options: dict[str, Any] = {"attention_backend": "triton", "page_size": 4, **MTP}
    options |= {"speculative_draft_model_path": f"{model}-assistant"}
    answers, read = [], []
    for off in ((), ("fresh_kv",)):
        env = {"SGLANG_GEMMA4_ATTENTION": "1", "TEST_INSTRUMENTS": "kernel_counters:read_back"}
        groups = [Group(PROMPTS[:2], {"max_new_tokens": 5}, logprobs=True)]
        answers.append(interpreting.run(model, groups, env=env | without("draft_argmax", *off), time_limit=400, **options)[0])
        log = answers[-1][0].log
        assert "fresh_kv" not in left(log)
        read.append(set(re.findall(r"VERIFY STEP: (\d+) layers read back", log)))
    shared = json.loads(Path(model, "config.json").read_text())["text_config"]["num_kv_shared_layers"]
    assert read == [{"0"}, {str(shared)}]
    for ours, stock in zip(*answers, strict=True):
        assert ours.token_ids == stock.token_ids
        assert ours.logprobs == stock.logprobs
        assert ours.meta_info["spec_verify_ct"] == stock.meta_info["spec_verify_ct"] < len(ours.token_ids)
