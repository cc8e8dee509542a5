"""The experts' gelu: SGLang's CUDA kernels compute it by erf, the config and transformers by tanh. Needs a card.

On a card an engine in bfloat16, since SGLang's norms there take no float32, on a model whose experts see gates from -4 to -1, where the
two differ by up to a third; norms after the experts let nothing else through. transformers is the oracle twice: as it is, and with erf in
the experts alone. Without a card the engine takes the native path, in float32, which computes tanh under the name gelu: that shows the
script, not the failure.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import case  # type: ignore[import-not-found]

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
    done = subprocess.run([sys.executable, __file__, str(path)], env=os.environ, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("LOGPROBS "):
            found: list[float] = json.loads(line.removeprefix("LOGPROBS "))
            return found
    raise SystemExit(f"the engine gave no answer:\n{(done.stdout + done.stderr)[-3000:]}")


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
    away = {name: max(abs(one - other) for one, other in zip(values, seen, strict=True)) for name, values in oracle.items()}
    apart = max(abs(one - other) for one, other in zip(*oracle.values(), strict=True))
    print(f"largest difference of a log-probability: {away}; of the two oracles: {apart:.4f}")
    if not torch.cuda.is_available():
        print("no card: this was the native path, which was always right")
    return int(case.verdict("tanh", min(away, key=lambda name: away[name])))


def serve(path: str) -> None:
    """Print the prompt's log-probabilities: on a card by SGLang's Triton experts, else by the CPU engine."""
    import torch

    if torch.cuda.is_available():
        from sglang.srt.entrypoints.engine import Engine

        kernels = {"attention_backend": "triton", "moe_runner_backend": "triton", "dtype": "bfloat16", "disable_cuda_graph": True}
        rest = {"skip_tokenizer_init": True, "skip_server_warmup": True, "max_total_tokens": 2048, "mem_fraction_static": 0.5}
        engine = Engine(model_path=path, log_level="warning", **kernels, **rest)
    else:
        engine = case.cpu_engine(model_path=path)
    sampling = {"max_new_tokens": 1, "temperature": 0}
    output = engine.generate(input_ids=PROMPT, sampling_params=sampling, return_logprob=True, logprob_start_len=0)
    print("LOGPROBS " + json.dumps([entry[0] for entry in output["meta_info"]["input_token_logprobs"][1:]]), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1])
    else:
        sys.exit(main())
