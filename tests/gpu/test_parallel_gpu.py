"""One model over two GPUs: tensor and expert parallel, pipeline stages and data-parallel attention give the tokens of one GPU.

In bfloat16 sums over ranks round otherwise, and SGLang's kernels for norms take no float32: on an H200 answers of 26B-A4B over two ranks
leave one GPU's after half of their tokens. So what is compared are log-probabilities up to there. A rank that loses experts, heads or KV
is off by whole units.

``TEST_PARALLEL_CPU=1`` runs the same on the CPU reference engine, where the answers must be equal: it shows that this file works.
"""

import functools
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from sglang_gemma4.tiny import checkpoints
from tests.harness.ports import free_port

ROOT = Path(__file__).parents[2]
ON_CPU = os.environ.get("TEST_PARALLEL_CPU") == "1"
pytestmark = pytest.mark.skipif(not ON_CPU and torch.cuda.device_count() < 2, reason="needs two GPUs")

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(30 + 25 * n))] for n in range(8)]
TOKENS = 40
EXPERTS = {"tp_size": 2, "ep_size": 2}
ATTENTION = {"tp_size": 2, "attn_dp_size": 2}
DRAFT = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_num_draft_tokens": 4, "speculative_eagle_topk": 1}
EAGER = {"disable_cuda_graph": True}
PARTED = {"SGLANG_PP_LAYER_PARTITION": "3,7"}
FORMS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "tp": ("tiny-26b-a4b", {"tp_size": 2}, {}),
    "tp-mtp": ("tiny-26b-a4b", {"tp_size": 2, **DRAFT}, {}),
    "tp-ep": ("tiny-26b-a4b", EXPERTS, {}),
    "tp-ep-mtp": ("tiny-26b-a4b", {**EXPERTS, **DRAFT}, {}),
    "pp": ("tiny-26b-a4b", {"pp_size": 2}, {}),
    "pp-dense": ("tiny-31b", {"pp_size": 2}, {}),
    "attention": ("tiny-26b-a4b", ATTENTION, {}),
    "attention-ep": ("tiny-26b-a4b", {**ATTENTION, **EXPERTS}, {}),
    "attention-eager": ("tiny-26b-a4b", {**ATTENTION, **EAGER}, {}),
    "e2b-tp-mtp": ("tiny-e2b", {"tp_size": 2, **DRAFT}, {}),
    "e2b-pp": ("tiny-e2b", {"pp_size": 2, **EAGER}, PARTED),
    "e2b-attention": ("tiny-e2b", ATTENTION, {}),
}
ENGINE: dict[str, Any] = {
    "dtype": "bfloat16",
    "attention_backend": "triton",
    "mem_fraction_static": 0.6,
    "max_total_tokens": 16384,
    "max_running_requests": 16,
    "cuda_graph_max_bs_decode": 16,
    "skip_server_warmup": True,
    "skip_tokenizer_init": True,
    "random_seed": 0,
}
MOST = 0.1
"""Mean difference of log-probabilities that rounding explains."""
Answer = list[tuple[float, int]]


def engine(name: str, options: Mapping[str, Any], env: Mapping[str, str], out: Path) -> dict[str, Any]:
    """All answers at once, and each request's alone, of an engine in a process of its own."""
    model = checkpoints.SHIPPED / name
    draft = {"speculative_draft_model_path": f"{model}-assistant"} if "speculative_algorithm" in options else {}
    served = {"model_path": str(model), **ENGINE, **options, **draft, "port": free_port()}
    job = {"engine": served, "prompts": PROMPTS, "tokens": TOKENS, "out": str(out)}
    log, path = out.with_suffix(".log"), os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with log.open("w") as stream:
        run = subprocess.run(
            [sys.executable, __file__, json.dumps(job)],
            env={**os.environ, "SGLANG_GEMMA4_STRICT": "1", "PYTHONPATH": path, **env},
            stdout=stream, stderr=stream, timeout=900, cwd=ROOT,
        )  # fmt: skip
    assert run.returncode == 0, log.read_text(errors="replace")[-4000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def differences(answers: list[Answer], references: list[Answer]) -> list[float]:
    """By how much log-probabilities differ as long as an answer's tokens are the reference's, and where it leaves them."""
    found = []
    for answer, reference in zip(answers, references, strict=True):
        for (one, token), (other, expected) in zip(answer, reference, strict=True):
            found.append(abs(one - other))
            if token != expected:
                break
    return found


@pytest.fixture(scope="module")
def one_gpu(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """What one GPU answers of a model, asked once."""
    folder = tmp_path_factory.mktemp("one")
    return functools.cache(lambda name: engine(name, {}, {}, folder / f"{name}.json"))


@pytest.mark.parametrize("form", FORMS)
def test_answers_are_those_of_one_gpu(form: str, one_gpu: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    name, options, env = FORMS[form]
    reference, found = one_gpu(name), engine(name, options, env, tmp_path / "answers.json")
    usual = differences(reference["alone"], reference["together"])
    for how in ("together", "alone"):
        one = differences(found[how], reference[how])
        said = f"{form}, {how}: log-probabilities differ by {mean(one):.4f} over {len(one)} tokens; one GPU's own by {mean(usual):.4f}"
        print(said)
        assert mean(one) <= (1e-4 if ON_CPU else MOST), said
    if "speculative_algorithm" in options:
        assert found["verify_steps"] < TOKENS, "drafts were accepted"


def with_logprobs(output: dict[str, Any]) -> Answer:
    """Each token of an answer, behind its log-probability."""
    return [(value, token) for value, token, _ in output["meta_info"]["output_token_logprobs"]]


def main() -> None:
    """Build the engine of a job, send its prompts, write what it answers."""
    job = json.loads(sys.argv[1])
    served: Any = pkgutil.resolve_name("tests.gpu.cpu_ranks:cpu_engine" if ON_CPU else "sglang:Engine")(**job["engine"])
    sampling = {"temperature": 0, "max_new_tokens": job["tokens"], "ignore_eos": True}
    together = served.generate(input_ids=job["prompts"], sampling_params=sampling, return_logprob=True)
    alone = [served.generate(input_ids=[prompt], sampling_params=sampling, return_logprob=True)[0] for prompt in job["prompts"]]
    answer = {
        "together": [with_logprobs(one) for one in together],
        "alone": [with_logprobs(one) for one in alone],
        "verify_steps": together[0]["meta_info"].get("spec_verify_ct"),
    }
    Path(job["out"]).write_text(json.dumps(answer))
    served.shutdown()


if __name__ == "__main__":
    main()
