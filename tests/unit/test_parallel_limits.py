"""How a model may be split over ranks, and what is refused in one line."""

import re
from typing import Any

import pytest

from sglang_gemma4.diagnostics import parallel_limits
from sglang_gemma4.patching import switches
from sglang_gemma4.tiny.families import layers

E2B = {"num_hidden_layers": 35, "num_kv_shared_layers": 20, "layer_types": layers(5, 35), "hidden_size_per_layer_input": 256}
E4B = {"num_hidden_layers": 42, "num_kv_shared_layers": 18, "layer_types": layers(6, 42), "hidden_size_per_layer_input": 256}
MOE = {"num_hidden_layers": 30, "layer_types": layers(6, 30), "num_experts": 128}
DENSE = {"num_hidden_layers": 60, "layer_types": layers(6, 60)}
EAGER = {"pp_size": 2, "disable_cuda_graph": True}


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(switches.CPU_ENGINE, raising=False)


def found(text: dict[str, Any], arguments: dict[str, Any], partition: str | None = None) -> list[str]:
    environ = {} if partition is None else {parallel_limits.PARTITION: partition}
    return list(parallel_limits.problems({"text_config": text}, arguments, environ))


def test_stages_are_divided_as_sglang_does() -> None:
    from sglang.srt.distributed.utils import get_pp_indices

    for number in (6, 30, 35, 42, 60):
        for stages in (1, 2, 3, 4, 5):
            sizes = [end - start for start, end in (get_pp_indices(number, rank, stages) for rank in range(stages))]
            assert parallel_limits.stages_of(number, stages) == sizes
    assert parallel_limits.stages_of(35, 2, "13,22") == [13, 22]


def test_owners_are_the_last_layers_of_each_type_before_the_shared_ones() -> None:
    assert [parallel_limits.owners(text) for text in (E2B, E4B, MOE)] == [[13, 14], [22, 23], []]


@pytest.mark.parametrize(("text", "stages", "split"), [(E2B, 2, "13,22"), (E2B, 3, "6,7,22"), (E4B, 3, "11,11,20"), (E4B, 4, "7,7,8,20")])
def test_shared_kv_names_the_split_that_works(text: dict[str, Any], stages: int, split: str) -> None:
    (line,) = found(text, {**EAGER, "pp_size": stages})
    assert f"set {parallel_limits.PARTITION}={split}, or use --tp-size" in line
    assert not found(text, {**EAGER, "pp_size": stages}, partition=split)


def test_too_many_stages_for_shared_kv() -> None:
    (line,) = found(E2B, {**EAGER, "pp_size": 20})
    assert "use --pp-size 14 or less" in line


WORKS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (MOE, {}), (MOE, {"pp_size": 2}), (E4B, EAGER), (DENSE, {"pp_size": 4}), (MOE, {"tp_size": 2, "ep_size": 2}), (MOE, {"dp_size": 4}),
    (MOE, {"tp_size": 2, "attn_dp_size": 2}), (E2B, {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}),
    (MOE, {"tp_size": 4, "attn_dp_size": 2, "ep_size": 4}), (MOE, {"moe_a2a_backend": "none"}),
    (MOE, {"tp_size": 2, "moe_dense_tp_size": 1}), (DENSE, {"tp_size": 2, "ep_size": 2}), (MOE, {"tp_size": 4, "ep_size": 2}),
)  # fmt: skip


@pytest.mark.parametrize(("text", "arguments"), WORKS)
def test_what_works_is_not_refused(text: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert found(text, arguments) == []


REFUSED: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    (MOE, {"pp_size": 31}, "--pp-size 31: the model has 30 layers, .* use --pp-size 30 or less"),
    (MOE, {"pp_size": 2, "speculative_draft_model_path": "auto"}, "--pp-size 2: an MTP draft reads KV of all stages .* use --tp-size, or"),
    (E4B, {"pp_size": 2}, "SGLang's CUDA graphs hand no per-layer embeddings .* add --disable-cuda-graph"),
    (MOE, {"tp_size": 3, "ep_size": 3}, "--ep-size 3: 128 experts do not divide by it"),
    (MOE, {"ep_size": 2}, "--ep-size 2: experts are split over ranks of --tp-size; give a --tp-size that it divides, for example 2"),
    (MOE, {"moe_a2a_backend": "deepep"}, "--moe-a2a-backend deepep: its expert kernels compute silu"),
    (MOE, {"tp_size": 2, "attn_cp_size": 2}, "--attn-cp-size 2: .* or use --tp-size"),
    (MOE, {"tp_size": 2, "dcp_size": 2}, "--dcp-size 2: "),
    (MOE, {"tp_size": 2, "moe_dp_size": 2}, "--moe-dp-size 2: "),
    (MOE, {"tp_size": 2, "dwdp_size": 2}, "--dwdp-size 2: "),
    (MOE, {"attn_dp_size": 2, "speculative_algorithm": "NEXTN"}, "--attn-dp-size 2: the MTP draft would wait .* run without MTP"),
    (DENSE, {"tp_size": 2, "moe_dense_tp_size": 1}, "--moe-dense-tp-size 1: a dense Gemma 4's FFN is split over all ranks; leave"),
)


@pytest.mark.parametrize(("text", "arguments", "line"), REFUSED)
def test_what_cannot_work_is_one_line(text: dict[str, Any], arguments: dict[str, Any], line: str) -> None:
    lines = found(text, arguments)
    assert any(re.search(line, one) for one in lines), lines
    assert all("\n" not in one and "; " in one for one in lines)


@pytest.mark.parametrize("partition", ["13", "13,22,0", "13,21", "a,b"])
def test_a_partition_that_does_not_add_up(partition: str) -> None:
    (line,) = found(E2B, EAGER, partition=partition)
    assert f"{parallel_limits.PARTITION}={partition} is not 2 numbers whose sum is the model's 35 layers" in line


def test_without_the_patch_attention_is_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(parallel_limits.FIXES, "0")
    for given in ({"attn_dp_size": 2}, {"dp_size": 2, "enable_dp_attention": True}):
        (line,) = found(MOE, given)
        assert "--attn-dp-size 2: SGLang's Gemma 4 has no data-parallel attention" in line
