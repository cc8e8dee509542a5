"""The traps in real engines: sound runs keep their tokens, one broken index ends in a named error and a dump that can be explained."""

import re
from pathlib import Path
from typing import Any

import pytest

from crash_repro import case
from crash_repro.engines import MTP
from sglang_gemma4.diagnostics import trap_dump
from tests.harness.checkpoints import text_only
from tests.harness.engine_fork import EngineFailed, Nursery, run_engine

ON = {"SGLANG_GEMMA4_DEBUG": "1"}
TRITON: dict[str, Any] = {"attention_backend": "triton", "time_limit": 300.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_only.save(case.text_model(), tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def mtp(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = text_only.save(case.assistant_model(), tmp_path_factory.mktemp("assistant"), sglang_names=False)
    return {**MTP, "speculative_draft_model_path": path}


def serve(nursery: Nursery, model: Path, env: dict[str, str], **engine: Any) -> tuple[list[list[int]], str]:
    sampling, options = {"max_new_tokens": case.TOKENS}, {"mem_fraction_static": 0.5, **engine}
    answers = run_engine(nursery, model=model, prompts=case.PROMPTS, sampling=sampling, env=env, **options)
    return [answer.token_ids for answer in answers], answers[0].log


def trapped(nursery: Nursery, model: Path, folder: Path, fault: str, **engine: Any) -> tuple[str, str]:
    """The error's line in the log and the explanation of its dump."""
    env = {**ON, "SGLANG_GEMMA4_DEBUG_DIR": str(folder), "TEST_INSTRUMENTS": f"index_faults:{fault}"}
    with pytest.raises(EngineFailed) as failed:
        serve(nursery, model, env, **engine)
    found = re.search(r"KVBoundsError: (.*)", str(failed.value))
    assert found, failed.value
    (dump,) = folder.glob("*.npz")
    assert str(dump) in found[1]
    return found[1], trap_dump.explain(dump)


@pytest.mark.parametrize("page_size", [1, 16])  # alloc, or alloc_extend and alloc_decode
def test_plain_decoding_keeps_its_tokens(page_size: int, nursery: Nursery, model: Path) -> None:
    tokens, log = serve(nursery, model, {**ON, "SGLANG_SWA_EVICTION_INTERVAL": "1"}, page_size=page_size)
    assert tokens == case.greedy(case.text_model())
    assert "Gemma4CpuAttention of the target is trapped" in log


def test_mtp_keeps_its_tokens(nursery: Nursery, model: Path, mtp: dict[str, Any]) -> None:
    tokens, log = serve(nursery, model, {**ON, "SGLANG_SWA_EVICTION_INTERVAL": "1"}, **mtp)
    assert tokens == case.greedy(case.text_model())
    assert "Gemma4CpuAttention of the target is trapped" in log
    assert "Gemma4CpuAttention of the draft is trapped" in log


def test_off_nothing_is_trapped(nursery: Nursery, model: Path) -> None:
    tokens, log = serve(nursery, model, {})
    assert tokens == case.greedy(case.text_model())
    assert "is trapped" not in log


@pytest.mark.parametrize(
    ("fault", "says", "cause"),
    [
        (
            "request_table",
            r"full layers \([\d, ]+\): entry 41 in row 1 \(request \w+, pool row \d+\) of req_to_token is slot 1000000; "
            r"the buffer's are 1\.\.\d+",
            "it is in SGLang's request table",
        ),
        ("mapping_cleared", r"sliding layers \([\d, ]+\): entry \d+ in row 1 .* is padding slot 0", "it was freed too early"),
        (
            "mapping_wrong",
            r"sliding layers \([\d, ]+\): entry \d+ in row 1 .* is slot (\d+); the buffer's are 1\.\.\d+",
            "the full-to-sliding mapping itself was overwritten",
        ),
    ],
)
def test_a_broken_index_in_plain_decoding(fault: str, says: str, cause: str, nursery: Nursery, model: Path, tmp_path: Path) -> None:
    line, explanation = trapped(nursery, model, tmp_path, fault)
    assert re.search(says, line), line
    assert "[eager decode on Gemma4CpuAttention]" in line
    assert cause in explanation, explanation


@pytest.mark.parametrize(
    ("fault", "where", "cause"),
    [
        ("request_table", "[eager target_verify on Gemma4CpuAttention]", "it is in SGLang's request table"),
        ("request_table_of_draft", "[eager decode on Gemma4CpuAttention of the draft]", "it is in SGLang's request table"),
        ("mapping_cleared", "[eager target_verify on Gemma4CpuAttention]", "it was freed too early"),
    ],
)
def test_a_broken_index_under_mtp(
    fault: str, where: str, cause: str, nursery: Nursery, model: Path, mtp: dict[str, Any], tmp_path: Path
) -> None:
    line, explanation = trapped(nursery, model, tmp_path, fault, **mtp)
    assert where in line
    assert cause in explanation, explanation


@pytest.mark.parametrize(("page_size", "call"), [(1, "alloc"), (16, "alloc_extend")])
def test_an_allocator_that_gives_a_slot_twice(page_size: int, call: str, nursery: Nursery, model: Path, tmp_path: Path) -> None:
    line, explanation = trapped(nursery, model, tmp_path, "double_allocation", page_size=page_size)
    assert re.search(r"sliding layers: the allocator gave slot \d+ to two tokens of one call, one of them token 1 ", line), line
    assert f"[{call} on SWATokenToKVPoolAllocator]" in line
    assert "freed twice" in explanation


def test_a_decode_slot_without_a_sliding_one(nursery: Nursery, model: Path, tmp_path: Path) -> None:
    line, explanation = trapped(nursery, model, tmp_path, "decode_slot_unmapped", page_size=16)
    assert re.search(r"sliding layers: token 1 of the allocated slots has padding slot 0; .*\[alloc_decode on", line), line
    assert "the free list holds a slot outside the buffer" in explanation


@pytest.mark.parametrize("fault", ["", "index_faults:triton_replay_sound"])
def test_triton_keeps_its_tokens(fault: str, interpreting: Nursery, model: Path) -> None:
    """Alone, and with what precedes a CUDA graph's replay beside each eager step: there is no graph on a CPU."""
    tokens, log = serve(interpreting, model, {**ON, "TEST_INSTRUMENTS": fault}, **TRITON)
    assert tokens == case.greedy(case.text_model())
    assert "TritonAttnBackend of the target is trapped" in log


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("triton_window", r"sliding layers \([\d, ]+\): entry 2 in row 1 .* of window_kv_indices is slot 1000000; .*\[eager decode on"),
        ("triton_replay", r"full layers \([\d, ]+\): entry 3 in row 1 .* of kv_indices is slot 1000000; .*\[graph replay decode on"),
    ],
)
def test_a_table_that_triton_built_wrong(fault: str, says: str, interpreting: Nursery, model: Path, tmp_path: Path) -> None:
    line, explanation = trapped(interpreting, model, tmp_path, fault, **TRITON)
    assert re.search(says, line), line
    assert "the backend's own table was built wrong" in explanation, explanation
