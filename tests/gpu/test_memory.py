"""Memory on a card: the page-table kernel compiled, and the traps at the replay of real CUDA graphs."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_gemma4.diagnostics import trap_dump
from sglang_gemma4.tiny import checkpoints
from tests.engine.test_oracle import Case
from tests.gpu.test_gpu import run_case
from tests.harness.engine_fork import Group
from tests.harness.inputs.drafting import MTP

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

FAMILY = "tiny-26b-a4b"
PROMPTS = [[2] + [(7 * i + 31 * n + 5 * n * i) % 700 + 300 for i in range(length - 1)] for n, length in enumerate((50, 90, 20))]
"""Three requests that run together: a graph for four is replayed, with a padded row. One is longer than the window."""
POISON = -7
FAULTS = {
    "request_table": (
        r"\(request \w{8,}, pool row \d+\) of req_to_token is slot 1000000; the buffer's are 1\.\.\d+.*\[graph replay decode on",
        "request table holds it",
    ),
    "mapping_cleared": (r"\(request \w{8,}, pool row \d+\).* is padding slot 0.*\[graph replay decode on", "freed too early"),
    "triton_graph": (
        r"\(request \w{8,}, pool row \d+\) of kv_indices is slot 1000000.*\[graph replay decode on",
        "own table was built wrong",
    ),
}
"""What the error says, and what its dump explains."""


class Three(Case):
    """The three prompts, 32 greedy tokens each."""

    def __init__(self) -> None:
        super().__init__(checkpoints.SHIPPED / FAMILY, [], [])

    def groups(self) -> list[Group]:
        return [Group(PROMPTS, {"max_new_tokens": 32, "temperature": 0, "ignore_eos": True})]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[list[int]], str, Path]]:
    """By arm: the three prompts' tokens (none if it died), its log, and the folder of its dumps; all engines at once."""
    base = tmp_path_factory.mktemp("engines")
    draft = {**MTP, "speculative_draft_model_path": f"{checkpoints.SHIPPED / FAMILY}-assistant"}
    arms: dict[str, tuple[str, str, dict[str, Any]]] = {
        "plain off": ("0", "", {}),
        "plain on": ("1", "", {}),
        "mtp off": ("0", "", draft),
        "mtp on": ("1", "", draft),
        **{fault: ("1", f"tests.harness.instruments.index_faults:{fault}", {}) for fault in FAULTS},
    }

    def one(name: str) -> tuple[list[list[int]], str, Path]:
        debug, fault, engine = arms[name]
        folder = base / name.replace(" ", "-")
        folder.mkdir()
        env = {
            "SGLANG_SWA_EVICTION_INTERVAL": "1",
            "SGLANG_GEMMA4_DEBUG": debug,
            "SGLANG_GEMMA4_DEBUG_DIR": str(folder / "dumps"),
            "TEST_INSTRUMENTS": fault,
        }
        try:
            outputs = run_case(Three(), folder, "engine", env, **engine)
        except AssertionError:
            outputs = []
        return [output["token_ids"] for output in outputs], (folder / "engine.log").read_text(), folder / "dumps"

    with ThreadPoolExecutor(len(arms)) as pool:
        return dict(zip(arms, pool.map(one, arms), strict=True))


@pytest.mark.parametrize("arm", ["plain", "mtp"])
def test_traps_at_graph_replay_change_no_token(arm: str, logs: dict[str, tuple[list[list[int]], str, Path]]) -> None:
    tokens, log, _ = logs[f"{arm} on"]
    assert "of the target is trapped" in log
    assert tokens, log[-4000:]
    assert tokens == logs[f"{arm} off"][0]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_index_is_caught_before_the_replay(fault: str, logs: dict[str, tuple[list[list[int]], str, Path]]) -> None:
    says, cause = FAULTS[fault]
    tokens, log, dumps = logs[fault]
    assert not tokens
    found = re.search(r"KVBoundsError: (.*)", log)
    assert found, log[-4000:]
    print(found[1])
    assert re.search(says, found[1]), found[1]
    (dump,) = dumps.glob("*.npz")
    assert cause in trap_dump.explain(dump)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("batch", "width", "page", "context"), [(1, 1, 1, 1), (3, 4, 16, 88), (5, 7, 3, 20), (2, 257, 1, 300), (64, 4096, 64, 262144 + 8)]
)
def test_compiled_page_rows_equal_the_reference(batch: int, width: int, page: int, context: int, index: torch.dtype) -> None:
    from sglang_gemma4.kernels.attention import page_rows as op

    assert os.environ.get("TRITON_INTERPRET") != "1"
    torch.manual_seed(0)
    req_to_token = torch.randperm((batch + 2) * context, dtype=torch.int32, device="cuda").view(batch + 2, context)
    mapping = torch.randperm((batch + 2) * context + 1, device="cuda").to(index) - 1
    requests = torch.randperm(batch + 2, device="cuda")[:batch].to(index)
    for lengths in ([width * page] * batch, [width * page + 1] * batch, [0] * batch, [n * 7919 % (width * page + 9) for n in range(batch)]):
        seqlens = torch.tensor([min(length, context) for length in lengths], dtype=torch.int32, device="cuda")
        memory = torch.full((2, batch + 1, width + 3), POISON, dtype=torch.int32, device="cuda")
        rows, sliding = memory[0, :batch, :width], memory[1, :batch, :width]
        op.page_rows(req_to_token, requests, seqlens, rows, page, swa_page_table=sliding, full_to_swa=mapping)
        assert torch.equal(rows, op.page_rows_reference(req_to_token, requests, seqlens, width, page))
        assert torch.equal(sliding, op.page_rows_reference(req_to_token, requests, seqlens, width, page, mapping))
        assert (memory[:, batch:] == POISON).all(), "wrote behind the table"
        assert (memory[:, :, width:] == POISON).all(), "wrote past the width of a row"
