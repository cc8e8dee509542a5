"""What needs a card: every patch active under a plain launch_server, and the tiny families exact in CUDA graphs.

Float32 dot products in Triton default to TF32; ``TRITON_F32_DEFAULT=ieee`` makes them float32, so that tokens can be compared.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang_gemma4.patches import load_all

from sglang_gemma4.diagnostics import doctor
from sglang_gemma4.tiny import checkpoints
from tests.engine.test_oracle import FAMILIES, MTP, NEW_TOKENS, Case, make_prompts
from tests.engine.transformers_oracle import decode

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")

ENGINE = {
    "dtype": "float32",
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "mem_fraction_static": 0.15,
    "max_total_tokens": 16384,
    "max_running_requests": 16,
    "cuda_graph_max_bs_decode": 16,
    "disable_prefill_cuda_graph": True,
    "random_seed": 0,
    "log_level": "info",
}
EXACT = {"TRITON_F32_DEFAULT": "ieee", "SGLANG_GEMMA4_STRICT": "1"}
Tokens = list[list[int]]


def run_case(case: Case, folder: Path, name: str, env: dict[str, str] | None = None, **engine: Any) -> list[dict[str, Any]]:
    """All prompts of a family through one engine; its log is kept in ``folder`` and shown when it fails."""
    request, answer, log = (folder / f"{name}.{kind}" for kind in ("request", "answer", "log"))
    groups = [asdict(group) for group in case.groups()]
    request.write_text(json.dumps({"model": str(case.model), "groups": groups, "engine": {**ENGINE, **engine}}))
    command = [sys.executable, "-m", "tests.gpu.engine_case", str(request), str(answer)]
    with log.open("wb") as out:
        status = subprocess.call(command, cwd=ROOT, env={**os.environ, **EXACT, **(env or {})}, stdout=out, stderr=out, timeout=400)
    assert status == 0, f"{name} ended with {status}:\n{log.read_text()[-4000:]}"
    outputs: list[list[dict[str, Any]]] = json.loads(answer.read_text())
    return [output for group in outputs for output in group]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Each family with transformers' tokens."""

    def make(family: str) -> Case:
        folder = tmp_path_factory.mktemp(family)
        model, prompts = checkpoints.SHIPPED / family, make_prompts(folder)
        return Case(model, prompts, decode(model, prompts, NEW_TOKENS, folder))

    with ThreadPoolExecutor(3) as pool:
        return dict(zip(FAMILIES, pool.map(make, FAMILIES), strict=True))


@pytest.fixture(scope="module")
def answers(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Answers by "family arm": plain, stock's window, MTP overlapped and synchronous; four engines at a time."""
    folder = tmp_path_factory.mktemp("gpu")
    arms: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {}
    for family in FAMILIES:
        draft = str(cases[family].model) + "-assistant"
        arms[f"{family} plain"] = (family, {}, {})
        arms[f"{family} mtp"] = (family, {}, {**MTP, "speculative_draft_model_path": draft})
    draft = str(cases["tiny-26b-a4b"].model) + "-assistant"
    arms["tiny-26b-a4b stock window"] = ("tiny-26b-a4b", {"SGLANG_GEMMA4_TRITON_WINDOW": "0"}, {})
    arms["tiny-26b-a4b sync mtp"] = (
        "tiny-26b-a4b",
        {},
        {**MTP, "speculative_draft_model_path": draft, "disable_overlap_schedule": True},
    )

    def one(name: str) -> list[dict[str, Any]]:
        family, env, engine = arms[name]
        return run_case(cases[family], folder, name.replace(" ", "-"), env, **engine)

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(arms, pool.map(one, arms), strict=True))


def tokens(outputs: list[dict[str, Any]]) -> Tokens:
    return [output["token_ids"] for output in outputs]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers_in_cuda_graphs(family: str, cases: dict[str, Case], answers: dict[str, Any]) -> None:
    assert tokens(answers[f"{family} plain"]) == [oracle.token_ids for oracle in cases[family].oracle]


def test_stock_window_gives_other_tokens(cases: dict[str, Case], answers: dict[str, Any]) -> None:
    stock = tokens(answers["tiny-26b-a4b stock window"])
    wrong = sum(a != oracle.token_ids for a, oracle in zip(stock, cases["tiny-26b-a4b"].oracle, strict=True))
    print(f"stock window: {wrong} of {len(stock)} prompts differ from transformers")
    assert wrong > 0


@pytest.mark.parametrize("arm", [*(f"{family} mtp" for family in FAMILIES), "tiny-26b-a4b sync mtp"])
def test_mtp_gives_plain_tokens(arm: str, answers: dict[str, Any]) -> None:
    plain, mtp = answers[f"{arm.split()[0]} plain"], answers[arm]
    steps = sum(output["meta_info"]["spec_verify_ct"] for output in mtp)
    print(f"{arm}: accept length {sum(len(output['token_ids']) for output in mtp) / steps:.2f}")
    assert tokens(mtp) == tokens(plain)


def test_a_plain_launch_server_loads_every_patch(tmp_path: Path) -> None:
    checkpoints.write("26b-a4b", str(tmp_path / "26b-a4b"), random=True)
    port, log = 31999, tmp_path / "log"
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(tmp_path / "26b-a4b"), "--port", str(port)]
    command += ["--load-format", "dummy", "--skip-tokenizer-init"]  # there are no weights and no tokenizer to load
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while b"ready to roll" not in log.read_bytes():
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(1)
        data = doctor.live(f"http://127.0.0.1:{port}")
        body = {"input_ids": [[2, *range(1000, 1050)]], "sampling_params": {"max_new_tokens": 64, "temperature": 0, "ignore_eos": True}}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            (output,) = json.load(answer)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    print(doctor.live_text(data))
    for row in data["scheduler"]:
        cpu_only = next(patch.cpu_engine for patch in load_all() if patch.name == row["name"])
        assert row["state"] == ("off" if cpu_only else "active"), row
    assert len(set(output["output_ids"])) > 16, "spread weights: tokens vary"
