"""Prefill graphs on the CPU, recorded and replayed operator by operator (see ``recorded_graphs``): greedy tokens equal transformers'."""

import re
from pathlib import Path
from typing import Any

import pytest

from crash_repro import case
from sglang_gemma4.tiny import checkpoints, families
from tests.engine.test_cpu_images import pictures, questions, reference
from tests.harness.checkpoints import text_only
from tests.harness.engine_fork import EngineFailed, Group, Nursery, Output
from tests.harness.inputs.drafting import with_assistant
from tests.harness.instruments import row_counter
from tests.harness.left_to_sglang import left
from tests.harness.oracles.reference import greedy_all, text_prompts

__all__ = ["pictures"]
ENGINE = {"disable_cuda_graph": False, "disable_decode_cuda_graph": True, "chunked_prefill_size": 96}
ON = {"SGLANG_GEMMA4_PREFILL_GRAPH": "1", "TEST_INSTRUMENTS": "recorded_graphs:install"}
YOCO = "SGLANG_GEMMA4_YOCO"
TOKENS = 10
E2B, MOE = checkpoints.SHIPPED / "tiny-e2b", checkpoints.SHIPPED / "tiny-26b-a4b"


def tokens(groups: list[list[Output]]) -> list[list[int]]:
    return [output.token_ids for group in groups for output in group]


def replays(groups: list[list[Output]]) -> list[tuple[int, int]]:
    """Captured size and tokens of each replay."""
    return [(int(size), int(rows)) for size, rows in re.findall(r"^REPLAYED (\d+) for (\d+)$", groups[0][0].log, re.MULTILINE)]


@pytest.mark.parametrize("name", families.TINY)
def test_replayed_prefills_equal_transformers(name: str, nursery: Nursery, pictures: list[str]) -> None:
    """Text over several chunks, a batch of requests with a cached prefix, and images that fit a graph or are cut beside one."""
    prompts = text_prompts(name, [9, 40, 70, 150])
    texts, files = questions(pictures)
    expected = [*greedy_all(name, prompts, TOKENS), *reference(name, texts, files)]
    sampling = {"max_new_tokens": TOKENS}
    groups = [Group(prompts, sampling), Group(texts, sampling, files)]
    model = checkpoints.SHIPPED / name
    found = nursery.run(model, groups, ON, **ENGINE)
    assert tokens(found) == expected
    done = replays(found)
    assert len(done) >= 4, done
    assert any(size > rows for size, rows in done), "a padded batch"
    told = r"sglang-gemma4: 5 prefill graphs took [\d.]+ s and hold [\d.]+ GiB, for 8, 16, 32, 64, 96 tokens"  # a chunk has 96
    assert re.search(told, found[0][0].log)
    if name in (E2B.name, MOE.name):
        drafted = nursery.run(model, groups, {**ON, YOCO: "1"}, **ENGINE, **with_assistant(model))
        assert tokens(drafted) == expected
        assert replays(drafted)
        assert ("yoco" in left(drafted[0][0].log)) is (name == MOE.name)


def test_replays_read_per_layer_embeddings(nursery: Nursery) -> None:
    """Log-probabilities are the eager prefill's; without the copy before a replay, which stock does not make, they are not."""
    groups = [Group(text_prompts(E2B.name, [40, 70, 64]), {"max_new_tokens": 4}, logprobs=True)]

    def logprobs(**env: str) -> list[float]:
        return [value for output in nursery.run(E2B, groups, env, **ENGINE)[0] for value in output.logprobs]

    eager, replayed = logprobs(), logprobs(**ON)
    forgotten = logprobs(**{**ON, "TEST_INSTRUMENTS": "recorded_graphs:forgetful"})
    assert replayed == pytest.approx(eager, abs=1e-4)
    error = max(abs(a - b) for a, b in zip(eager, forgotten, strict=True))
    print(f"without per-layer embeddings log-probabilities are off by {error:.3f}")
    assert error > 1e-3


@pytest.mark.parametrize(
    ("model", "said"),
    [(E2B, "invalid or duplicate attention layer_id"), (MOE, "You must specify exactly one of input_ids or inputs_embeds")],
    ids=["e2b", "26b-a4b"],
)
def test_stock_cannot_capture(model: Any, said: str, nursery: Nursery) -> None:
    env = {**ON, "SGLANG_GEMMA4_PREFILL_GRAPH": "0"}
    with pytest.raises(EngineFailed, match=said):
        nursery.run(model, [Group([[2, 300]])], env, 60.0, cuda_graph_backend_prefill="breakable", **ENGINE)


def test_the_switch_under_its_other_name_and_the_operators_sizes(nursery: Nursery) -> None:
    prompts = text_prompts(MOE.name, [20])
    env = {"SGLANG_ENABLE_PIECEWISE_CUDA_GRAPH_FOR_MM": "1", "TEST_INSTRUMENTS": "recorded_graphs:install"}
    found = nursery.run(MOE, [Group(prompts, {"max_new_tokens": TOKENS})], env, cuda_graph_bs_prefill=[24, 48], **ENGINE)
    assert replays(found) == [(24, 20)]
    assert "num_tokens=[24, 48]" in found[0][0].log


@pytest.mark.parametrize("name", ["SGLANG_GEMMA4_PREFILL_GRAPH", "SGLANG_ENABLE_PIECEWISE_CUDA_GRAPH_FOR_MM"])
def test_off(name: str, nursery: Nursery) -> None:
    env = {name: "0", "TEST_INSTRUMENTS": "recorded_graphs:install"}
    found = nursery.run(MOE, [Group([[2, *range(300, 320)]], {"max_new_tokens": 2})], env, **ENGINE)
    assert replays(found) == []
    assert "Breakable CUDA graph is incompatible with multimodal model" in found[0][0].log


def test_the_operators_word_against_graphs_stands(nursery: Nursery) -> None:
    found = nursery.run(MOE, [Group([[2, *range(300, 320)]], {"max_new_tokens": 2})], ON, **ENGINE, disable_prefill_cuda_graph=True)
    assert replays(found) == []
    assert "prefill graphs took" not in found[0][0].log
    assert "prefill_graph" not in left(found[0][0].log)


def test_a_text_only_checkpoint_whose_layers_share_kv(nursery: Nursery, tmp_path: Path) -> None:
    """It starts, eager or with the switch in graphs; stock raises (``crash_repro/shared_kv_prefill_graph.py``)."""
    model = case.text_model("tiny-e2b")
    path = text_only.save(model, tmp_path, sglang_names=True)
    groups = [Group(case.PROMPTS, {"max_new_tokens": case.TOKENS})]
    for switch in "01":
        found = nursery.run(path, groups, {**ON, "SGLANG_GEMMA4_PREFILL_GRAPH": switch, YOCO: "1"}, **ENGINE)
        assert tokens(found) == case.greedy(model)
        assert bool(replays(found)) is (switch == "1")


def test_a_server_whose_graphs_are_to_be_saved(nursery: Nursery) -> None:
    """Stock prefills eagerly here; SGLang's breakable graphs would end the start."""
    env = {**ON, "SGLANG_MEMORY_SAVER_CUDA_GRAPH": "1", "TEST_INSTRUMENTS": "recorded_graphs:saving"}
    found = nursery.run(MOE, [Group([[2, *range(300, 320)]], {"max_new_tokens": 2})], env, enable_memory_saver=True, **ENGINE)
    assert replays(found) == []
    assert "--enable-memory-saver with SGLANG_MEMORY_SAVER_CUDA_GRAPH=1" in left(found[0][0].log)["prefill_graph"]


def test_where_fast_prefill_declines_graphs_hold_every_layer(nursery: Nursery) -> None:
    env = {**ON, YOCO: "1", "TEST_INSTRUMENTS": "recorded_graphs:counting"}
    found = nursery.run(E2B, [Group(text_prompts(E2B.name, [40]))], env, kv_cache_dtype="bfloat16", **ENGINE)
    assert "a prefill goes through all layers: the KV cache is torch.bfloat16, the model torch.float32" in left(found[0][0].log)["yoco"]
    (prefill,) = row_counter.prefill_forwards(found[0][0].log)
    assert (prefill.replayed, prefill.prepared, prefill.layers) == (True, ["EXTEND"], [])
