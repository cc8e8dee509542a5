"""What needs a card: every patch active under a plain launch_server, and the tiny families in CUDA graphs beside transformers.

SGLang's norm kernels take 16-bit types only, so tokens cannot be compared exactly: in bfloat16 an answer leaves the float32
oracle's where two tokens are nearly as likely. What is compared is for how long answers follow it, and how far the
log-probabilities are off while they do, with transformers' own bfloat16 as the measure.
"""

import importlib.util
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
from transformers import AutoTokenizer  # noqa: F401 - of threads that ask transformers for a lazy name at the same time, one fails

from sglang_gemma4.diagnostics import doctor
from sglang_gemma4.patches import load_all
from sglang_gemma4.patching import switches
from sglang_gemma4.tiny import checkpoints
from tests.engine.test_oracle import ACCEPT_LENGTH, FAMILIES, NEW_TOKENS, Case, make_prompts
from tests.harness.engine_fork import without
from tests.harness.inputs.drafting import MTP
from tests.harness.oracles.transformers_oracle import Greedy, decode

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

# Where this sgl_kernel build has FlashAttention 3, SGLang takes it for the vision tower; the other backend is always there.
HAS_FA3 = torch.cuda.is_available() and importlib.util.find_spec("sgl_kernel.flash_ops") is not None
VISION = {} if HAS_FA3 else {"mm_attention_backend": "triton_attn"}
ENGINE = {
    **VISION,
    "dtype": "bfloat16",
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "mem_fraction_static": 0.9,  # what engines that start at the same time take counts against it; the pool is bounded below
    "max_total_tokens": 16384,
    "max_running_requests": 16,
    "cuda_graph_max_bs_decode": 16,
    "disable_prefill_cuda_graph": True,
    "random_seed": 0,
    "log_level": "info",
}
STRICT = {"SGLANG_GEMMA4_STRICT": "1"}
FOLLOWED_SLACK, ERROR_RATIO = 0.15, 1.5  # against transformers in bfloat16


def case_of(family: str, folder: Path) -> Case:
    """The prompts of a family with transformers' float32 tokens."""
    model, prompts = checkpoints.SHIPPED / family, make_prompts(folder)
    return Case(model, prompts, decode(model, prompts, NEW_TOKENS, folder))


def run_case(case: Case, folder: Path, name: str, env: dict[str, str] | None = None, **engine: Any) -> list[dict[str, Any]]:
    """All prompts of a family through one engine; its log is kept in ``folder`` and shown when it fails."""
    request, answer, log = (folder / f"{name}.{kind}" for kind in ("request", "answer", "log"))
    groups = [asdict(group) for group in case.groups()]
    request.write_text(json.dumps({"model": str(case.model), "groups": groups, "engine": {**ENGINE, **engine}}))
    command = [sys.executable, "-m", "tests.gpu.engine_case", str(request), str(answer)]
    with log.open("wb") as out:
        status = subprocess.call(command, cwd=ROOT, env={**os.environ, **STRICT, **(env or {})}, stdout=out, stderr=out, timeout=400)
    assert status == 0, f"{name} ended with {status}:\n{log.read_text()[-4000:]}"
    outputs: list[list[dict[str, Any]]] = json.loads(answer.read_text())
    return [output for group in outputs for output in group]


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Case, list[Greedy]]]:
    """Each family's prompts with transformers' float32 tokens, and what transformers decodes in bfloat16."""

    def make(family: str) -> tuple[Case, list[Greedy]]:
        folder = tmp_path_factory.mktemp(family)
        case = case_of(family, folder)
        return case, decode(case.model, case.prompts, NEW_TOKENS, folder, "bfloat16")

    with ThreadPoolExecutor(3) as pool:
        return dict(zip(FAMILIES, pool.map(make, FAMILIES), strict=True))


@pytest.fixture(scope="module")
def cases(oracles: dict[str, tuple[Case, list[Greedy]]]) -> dict[str, Case]:
    """Each family with transformers' float32 tokens."""
    return {family: case for family, (case, _) in oracles.items()}


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
    arms["tiny-26b-a4b stock window"] = ("tiny-26b-a4b", without("triton_window"), {})
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


def agreement(outputs: list[dict[str, Any]], oracle: list[Greedy]) -> tuple[float, float]:
    """Share of tokens that come before an answer first differs from the oracle's, and their mean log-probability error."""
    followed, errors = 0, []
    for output, reference in zip(outputs, oracle, strict=True):
        same = [a == b for a, b in zip(output["token_ids"], reference.token_ids, strict=True)]
        length = same.index(False) if False in same else len(same)
        followed += length
        errors += [abs(a - b) for a, b in zip(output["logprobs"][:length], reference.logprobs, strict=False)]
    return followed / sum(len(reference.token_ids) for reference in oracle), sum(errors) / len(errors)


@pytest.mark.parametrize(
    "arm", [*(f"{family} plain" for family in FAMILIES), *(f"{family} mtp" for family in FAMILIES), "tiny-26b-a4b sync mtp"]
)
def test_answers_follow_transformers_in_cuda_graphs(
    arm: str, oracles: dict[str, tuple[Case, list[Greedy]]], answers: dict[str, Any]
) -> None:
    case, bfloat16 = oracles[arm.split()[0]]
    own = agreement([vars(answer) for answer in bfloat16], case.oracle)
    followed, error = agreement(answers[arm], case.oracle)
    print(
        f"{arm}: follows for {followed:.3f} of the tokens, mean log-probability error {error:.4f}; transformers {own[0]:.3f}, {own[1]:.4f}"
    )
    assert followed >= own[0] - FOLLOWED_SLACK
    assert error <= own[1] * ERROR_RATIO


def test_the_whole_window_is_nearer_to_transformers_than_stocks(cases: dict[str, Case], answers: dict[str, Any]) -> None:
    """Only prompts longer than the window can tell; in decode every such step of stock's misses one key."""
    oracle = cases["tiny-26b-a4b"].oracle
    long = [i for i, reference in enumerate(oracle) if len(reference.input_ids) > 64]
    found = {}
    for arm in ("plain", "stock window"):
        outputs = answers[f"tiny-26b-a4b {arm}"]
        found[arm] = agreement([outputs[i] for i in long], [oracle[i] for i in long])
        print(f"{arm}: {len(long)} long prompts follow for {found[arm][0]:.3f}, mean log-probability error {found[arm][1]:.4f}")
    assert found["plain"][0] >= found["stock window"][0]
    assert found["plain"][1] < found["stock window"][1]


@pytest.mark.parametrize("arm", [*(f"{family} mtp" for family in FAMILIES), "tiny-26b-a4b sync mtp"])
def test_mtp_accepts_drafts(arm: str, answers: dict[str, Any]) -> None:
    steps = sum(output["meta_info"]["spec_verify_ct"] for output in answers[arm])
    accept_length = sum(len(output["token_ids"]) for output in answers[arm]) / steps
    print(f"{arm}: accept length {accept_length:.2f}")
    assert ACCEPT_LENGTH[0] <= accept_length <= ACCEPT_LENGTH[1]


def test_a_plain_launch_server_loads_every_patch(tmp_path: Path) -> None:
    checkpoints.write("26b-a4b", str(tmp_path / "26b-a4b"), random=True)
    port, log = 31999, tmp_path / "log"
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(tmp_path / "26b-a4b"), "--port", str(port)]
    command += ["--load-format", "dummy"]  # there are no weights to load
    command += [word for name, value in VISION.items() for word in (f"--{name.replace('_', '-')}", value)]
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
    assert log.read_text().count("sglang-gemma4 is ready: ") == 1, "one banner"
    for row in data["scheduler"]:
        asked = next(switches.SWITCHES[patch.switch].default is patch.at for patch in load_all() if patch.name == row["name"])
        assert (row["state"] == "off") is not asked, row
        assert row["state"] in ("active", "idle", "off"), row
    assert len(set(output["output_ids"])) > 16, "spread weights: tokens vary"
