"""SGLang's own page tables of trtllm_mha and FlashAttention, eager and before a replay, sound and broken; made on the CPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_gemma4.cpu.environment import launch_environment
from sglang_gemma4.diagnostics import trap_dump

ROOT = Path(__file__).parents[2]
FULL = r"full layers \(1\): entry 2 in row 1 \(request two, pool row 2\) of page_table is page 17; the buffer's are 1\.\.16"
SLIDING = r"sliding layers \(0\): entry 4 in row 0 \(request one, pool row 1\) of swa_page_table is page 9; the buffer's are 1\.\.8"
EXPECTED = {
    "trtllm_mha decode": "passed",
    "trtllm_mha decode replay": "passed",
    "trtllm_mha decode full page": rf"KVBoundsError: .* {FULL} \[eager decode on TRTLLMHAAttnBackend\]",
    "trtllm_mha decode replay sliding page": rf"KVBoundsError: .* {SLIDING} \[graph replay decode on TRTLLMHAAttnBackend\]",
    "trtllm_mha target_verify": "passed",
    "trtllm_mha target_verify replay": "passed",
    "trtllm_mha target_verify full page": rf"KVBoundsError: .* {FULL} \[eager target_verify on TRTLLMHAAttnBackend\]",
    "trtllm_mha target_verify replay sliding page": rf"KVBoundsError: .* {SLIDING} \[graph replay target_verify on TRTLLMHAAttnBackend\]",
    "trtllm_mha draft tokens past the context": r"KVBoundsError: .* of page_table is read for 9 pages, and the row has 8 \[eager target_v",
    "trtllm_mha draft": "passed",
    "fa4 decode": "passed",
    "fa4 draft": r"KVBoundsError: .* sliding layers \(0\): entry 2 in row 1 .* of page_table is page 10; the buffer's are 1\.\.8 "
    r"\[eager decode on FlashAttentionBackend of the draft\]",
}


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dumps")


@pytest.fixture(scope="module")
def outcomes(dumps: Path) -> dict[str, str]:
    environment = launch_environment({**os.environ, "PYTHONPATH": str(ROOT)})
    environment |= {"SGLANG_GEMMA4_DEBUG_DIR": str(dumps), "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "tests/harness/programs/real_page_tables.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    for line in done.stdout.splitlines():
        if line.startswith("CASES "):
            found: dict[str, str] = json.loads(line.removeprefix("CASES "))
            return found
    raise AssertionError(done.stderr[-4000:])


@pytest.mark.parametrize("name", EXPECTED)
def test_each_case(name: str, outcomes: dict[str, str]) -> None:
    assert re.match(EXPECTED[name], outcomes[name]), outcomes[name]


def test_nothing_else_ran_and_every_dump_explains_itself(outcomes: dict[str, str], dumps: Path) -> None:
    assert set(outcomes) == set(EXPECTED)
    explained = [trap_dump.explain(path) for path in sorted(dumps.iterdir())]
    assert len(explained) == sum(outcome != "passed" for outcome in outcomes.values())
    causes = {line for text in explained for line in text.splitlines() if line.startswith("likely")}
    for part in ("it should be page 8", "it should be page 3", "a context length too small", "it is the full page itself"):
        assert any(part in cause for cause in causes), causes
