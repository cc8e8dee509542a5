"""Step times of SGLang's offline engine, in a separate process: ``python -m sglang_gemma4.benchmark.step_times ORDER.json``.

The order holds ``raw``, ``arm``, ``round``, ``model``, ``arguments`` (server flags), ``cpu``, ``input_tokens``,
``output_tokens``, ``prefill_once`` (counted passes find their prompts in the prefix cache), ``tasks`` (list of
["step", "step with N adapters", "curve" or "profile", batch, repetition]; repetition -1 warms up) and ``card`` (for
the roofline, or None). A task runs when a line arrives on standard input, since other engines may use the GPU in
between. Every result is appended to ``raw`` at once, so that a later failure does not lose it. The engine stays up
until standard input closes, since others may have mapped its weights.
"""

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark import records, step_curve
from sglang_gemma4.benchmark.profile import empty_radix_cache
from sglang_gemma4.benchmark.server import graphs_of, patches_of, settings_of
from sglang_gemma4.models.config_files import read_config

PROFILED_STEPS = 8


def main() -> None:
    """Run one order."""
    order = json.loads(Path(sys.argv[1]).read_text())
    if order["cpu"]:
        from sglang_gemma4.cpu.environment import default_arguments, prepare_this_process

        prepare_this_process()
        order["arguments"] += default_arguments(order["arguments"])
    run(order)


def run(order: dict[str, Any]) -> None:
    """Start the engine, measure what is asked for, and write records."""
    import sglang
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    raw, who = Path(order["raw"]), {"arm": order["arm"], "round": order["round"]}
    started = time.perf_counter()
    # Metrics, as in the servers of the same run; without them SGLang does not report its time stamps.
    own = ["--model-path", order["model"], "--skip-tokenizer-init", "--enable-metrics"]
    engine = sglang.Engine(server_args=prepare_server_args([*own, *order["arguments"]]))
    seconds = time.perf_counter() - started
    info = engine.get_server_info()
    about = {"settings": settings_of(info), "graphs": graphs_of(info), "patches": patches_of(info)}
    records.append(raw, "start", **who, process="engine", seconds=seconds, **about)
    prompts = random_prompts(order["model"], max(batch for _, batch, _ in order["tasks"]), order["input_tokens"])
    for kind, batch, repetition in order["tasks"]:
        if not sys.stdin.readline():
            break
        if kind == "profile":
            profile(engine, order, who, prompts[:batch])
            continue
        row = {"batch": batch, "repetition": repetition, "counted": repetition >= 0, "input_tokens": order["input_tokens"]}
        if kind == "curve":
            between = order["output_tokens"] if repetition >= 0 else step_curve.WARM_UP_TOKENS
            records.append(raw, "curve", **who, **row, **step_curve.measure(engine, prompts[:batch], between))
            continue
        more: dict[str, Any] = {}
        if kind != "step":  # the requests alternate between LoRA adapters named adapter-0, adapter-1, ...
            row["adapters"] = count = int(kind.split()[2])
            more["lora_path"] = [f"adapter-{number % count}" if count else None for number in range(batch)]
        found = measure(engine, prompts[:batch], order["output_tokens"], cold=repetition < 0 or not order["prefill_once"], **more)
        records.append(raw, "step", **who, **row, **found)
    sys.stdin.read()
    engine.shutdown()


def measure(engine: Any, prompts: list[list[int]], output_tokens: int, cold: bool = True, **more: Any) -> dict[str, Any]:
    """Times of one batch, from SGLang's own time stamps: prefill ends when the last request has its first token, the rest is decoding.

    A decode step is a forward pass of the target: one token, or under MTP one verify step. Requests that end early
    leave the later steps with a smaller batch; ``step_ms`` averages over all of them. ``cold`` empties the prefix
    cache first; without it no prefill time is given. ``more`` is passed to the engine with the requests.

    Raises:
        RuntimeError: some requests waited until others were done, so this was not one batch.
        ValueError: the engine serves other requests too.
    """
    if cold:
        empty_radix_cache(engine)
    sampling = {"max_new_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
    started = time.time()
    outputs = engine.generate(input_ids=prompts, sampling_params=sampling, **more)
    about = [output["meta_info"] for output in outputs]
    prefilled = step_curve.prefilled_at(about)
    decoding = max(meta["request_finished_ts"] for meta in about) - prefilled
    verify = [int(meta.get("spec_verify_ct") or 0) for meta in about]
    tokens = sum(meta["completion_tokens"] for meta in about) - len(about)
    steps = max(verify) or output_tokens - 1
    return {
        "output_tokens": output_tokens,
        "prefill_ms": (prefilled - started) * 1000 if cold else None,
        "cached_tokens": sum(meta["cached_tokens"] for meta in about),
        "step_ms": decoding / steps * 1000,
        "steps": steps,
        "output_throughput": tokens / decoding,
        "accept_length": tokens / sum(verify) if any(verify) else None,
        "distinct_tokens": len({token for output in outputs for token in output["output_ids"]}),
    }


def random_prompts(model: str, count: int, tokens: int) -> list[list[int]]:
    """Random prompts of token ids below every id that has a meaning in the config (image, audio and turn tokens)."""
    config = read_config(model, "model") or {}
    vocabulary = config.get("text_config", config)["vocab_size"]
    meanings = [value for name, value in config.items() if name.endswith("_token_id") and isinstance(value, int) and value > 200]
    rng = random.Random(0)
    return [[rng.randrange(100, min([vocabulary, *meanings])) for _ in range(tokens)] for _ in range(count)]


def profile(engine: Any, order: dict[str, Any], who: dict[str, Any], prompts: list[list[int]]) -> None:
    """Append the kernels of a prefill and of decode steps at this batch, with the roofline if the GPU's figures are given."""
    from sglang_gemma4.benchmark import profile as profiles
    from sglang_gemma4.benchmark import roofline

    for stage in ("prefill", "decode"):
        with tempfile.TemporaryDirectory() as folder:
            row = profiles.profile_stage(engine, stage, prompts, PROFILED_STEPS, Path(folder))
        card = order["card"]
        row["roofline"] = roofline.beside(row, order["model"], order["arguments"], card) if card else None
        records.append(Path(order["raw"]), "profile", **who, **row)


if __name__ == "__main__":
    main()
