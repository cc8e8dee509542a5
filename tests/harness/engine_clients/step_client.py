"""The benchmark's step times of a nursery's engine, which ``sglang_gemma4.benchmark.step_times`` starts in a process of its own."""

import json
from typing import Any


def measure(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """A batch with its prefill, the same from the prefix cache, and a curve: three records in one answer's ``text``."""
    from sglang_gemma4.benchmark import step_curve, step_times

    asked = group["extra"]
    read, written = asked["tokens"]
    prompts = step_times.random_prompts(engine.server_args.model_path, max(asked["batch"], asked["curve"]), read)
    steps = [step_times.measure(engine, prompts[: asked["batch"]], written, cold=cold) for cold in (True, False)]
    curve = step_curve.measure(engine, prompts[: asked["curve"]], written)
    return [{"token_ids": [], "text": json.dumps([*steps, curve]), "logprobs": [], "meta_info": {}}]
