"""The experts' gelu: SGLang's Triton runner computes it by erf, the config and transformers by tanh. Needs no GPU: Triton's interpreter.

The model's experts see gates from -4 to -1, where the two differ by up to a third; norms after the experts let nothing else through.
transformers is the oracle twice: as it is, and with erf in the experts alone. On a card an engine in bfloat16, since SGLang's norms there
take no float32; without one the same runner, its kernels interpreted (``instruments/triton_experts.py``), since SGLang's native path
computes tanh under the name gelu.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]

PROMPT = case.PROMPTS[0]


def logprobs_by_transformers(model: Any) -> list[float]:
    """Of each token of the prompt but the first."""
    import torch

    with torch.no_grad():
        ids = torch.tensor([PROMPT])
        scores = model(ids).logits[0, :-1].float().log_softmax(-1)
    found: list[float] = scores.gather(1, ids[0, 1:, None])[:, 0].tolist()
    return found


def logprobs_by_sglang(path: Path) -> list[float]:
    """The same from an engine in a process of its own."""
    import torch

    if torch.cuda.is_available():
        done = subprocess.run([sys.executable, __file__, str(path)], env=os.environ, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
        found = json.loads(lines[0].removeprefix("ANSWER ")) if lines else (done.stdout + done.stderr)[-3000:]
    else:
        router = "router_scale"  # whose failure on the CPU's path is another one
        switches = engines.package_with("expert_gelu", router) or engines.stock_but(router)
        env = {"TRITON_INTERPRET": "1", **switches}
        found = engines.ask(path, "expert_gelu:prompt_logprobs", env=env, prepare="tests.harness.instruments.triton_experts:install")
    if not isinstance(found, list):
        raise SystemExit(f"the engine gave no answer:\n{found}")
    return found


def prompt_logprobs(engine: Any, _extra: object = None) -> list[float]:
    """By an engine, in its process."""
    sampling = {"max_new_tokens": 1, "temperature": 0}
    output = engine.generate(input_ids=PROMPT, sampling_params=sampling, return_logprob=True, logprob_start_len=0)
    return [entry[0] for entry in output["meta_info"]["input_token_logprobs"][1:]]


def main() -> int:
    """Which gelu the engine's log-probabilities are nearer to."""
    import torch

    model = case.negative_gates_model()
    oracle = {"tanh": logprobs_by_transformers(model)}
    with tempfile.TemporaryDirectory() as folder:
        seen = logprobs_by_sglang(case.save(model, Path(folder)))
    for layer in model.model.layers:
        layer.experts.act_fn = torch.nn.GELU()
    oracle["erf"] = logprobs_by_transformers(model)
    away = {name: _apart(values, seen) for name, values in oracle.items()}
    print(f"median difference of a token's log-probability: {away}; of the two oracles: {_apart(*oracle.values()):.4f}")
    return int(case.verdict("tanh", min(away, key=lambda name: away[name])))


def _apart(one: list[float], other: list[float]) -> float:
    """The median: where two experts are almost as good, a rounding chooses, and one such token says nothing."""
    return statistics.median(abs(a - b) for a, b in zip(one, other, strict=True))


def serve_on_a_card(path: str) -> None:
    """Print the prompt's log-probabilities."""
    from sglang.srt.entrypoints.engine import Engine

    kernels = {"attention_backend": "triton", "moe_runner_backend": "triton", "dtype": "bfloat16", "disable_cuda_graph": True}
    rest = {"skip_tokenizer_init": True, "skip_server_warmup": True, "max_total_tokens": 2048, "mem_fraction_static": 0.5}
    engine = Engine(model_path=path, log_level="warning", **kernels, **rest)
    print("ANSWER " + json.dumps(prompt_logprobs(engine)), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve_on_a_card(sys.argv[1])
    else:
        sys.exit(main())
