"""Kernel times of one stage: drives SGLang's torch.profiler through an offline engine.

Decoding is profiled with ``num_steps`` once every request is running, so that no prefill and no half-filled batch is
included; ``profile_by_stage`` would start at the first decode batch, however many requests it holds. Prefill is
profiled between an explicit start and stop. What a profile covers is counted from its trace and compared with what
was asked for.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark import stages
from sglang_gemma4.benchmark.trace import Step, Trace

STAGES = ("prefill", "decode")
SLACK_STEPS = 64
"""Decode steps that may pass before the profiler starts and after it stops."""


def empty_radix_cache(engine: Any, seconds: float = 5.0) -> None:
    """Flush an offline engine's prefix cache, so that no prompt finds its keys from the previous pass.

    SGLang refuses while its scheduler still holds answered requests.

    Raises:
        ValueError: SGLang still refuses after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while not engine.flush_cache().success:
        if time.monotonic() > deadline:
            raise ValueError("the radix cache cannot be emptied: the engine serves other requests; measure an engine of your own")
        time.sleep(0.1)


def profile_stage(engine: Any, stage: str, prompts: Sequence[Sequence[int]], steps: int, folder: Path) -> dict[str, Any]:
    """Profile one stage of an ``sglang.Engine`` that serves nothing else meanwhile.

    Args:
        engine: offline engine, with or without MTP. Its radix cache is emptied for the stage "prefill".
        stage: "decode" profiles ``steps`` decode (or verify) steps with all requests running; "prefill" passes of all
            prompts.
        prompts: token ids of each request. Their number is the batch.
        steps: decode steps, or prefill passes.
        folder: gets the trace, ``<stage>-batch<N>-TP-0….trace.json.gz``.

    Returns:
        The fields of a ``profile`` record (``records.py``) except ``arm`` and ``roofline``: ``stage``, ``batch``,
        ``context_tokens`` (of a request when a step has written its own: the prompt in prefill, the mean over the
        steps in decode), ``tokens_per_request``, ``steps``, ``kernels``, ``busy_microseconds``, ``stages``; and
        ``clock`` ("gpu" or "cpu"), ``forwards`` (target forward passes: more than ``steps`` if prefill is chunked)
        and ``trace`` (file name).

    Raises:
        ValueError: bad arguments, or the engine cannot run so many requests at once; the message says what to change.
    """
    if stage not in STAGES:
        raise ValueError(f"stage {stage!r} is not one of {', '.join(STAGES)}")
    if steps < 1 or not prompts or not all(prompts):
        raise ValueError(
            f"{steps} steps of {len(prompts)} prompts cannot be profiled; give at least one step and prompts that are not empty"
        )
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{stage}-batch{len(prompts)}"
    for old in folder.glob(f"{name}-TP-0*.trace.json.gz"):
        old.unlink()
    ids = [list(prompt) for prompt in prompts]
    settings = {"output_dir": str(folder), "profile_id": name, "activities": ["CPU", "GPU"], "with_stack": False, "record_shapes": False}
    length = sum(map(len, ids)) / len(ids)
    if stage == "prefill":
        _run_prefill(engine, ids, steps, settings)
        context, width = length, round(length)
    else:
        width = engine.server_args.speculative_num_draft_tokens if engine.server_args.speculative_algorithm else 1
        before, per_step = _run_decode(engine, ids, steps, width, settings)
        context = length + before + per_step * (steps - 1) / 2 + width
    trace = Trace(_written(engine, folder, name))
    covered = [step for step in trace.steps if step.stage == stage]
    _check(stage, covered, len(ids), steps, sum(map(len, ids)))
    return {
        "stage": stage,
        "batch": len(ids),
        "context_tokens": round(context),
        "tokens_per_request": width,
        "steps": steps,
        "kernels": trace.kernels(stage),
        "busy_microseconds": trace.busy(stage),
        "stages": stages.of_decode(trace) if stage == "decode" else None,
        "clock": trace.clock,
        "forwards": len(covered),
        "trace": trace.path.name,
    }


def _sampling(tokens: int) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}


def _run_prefill(engine: Any, prompts: list[list[int]], passes: int, settings: dict[str, Any]) -> None:
    """Run one pass that compiles kernels, then ``passes`` under the profiler, each with an empty radix cache."""
    for number in range(passes + 1):
        empty_radix_cache(engine)
        if number == 1:
            engine.start_profile(**settings)
        engine.generate(input_ids=prompts, sampling_params=_sampling(1))
    engine.stop_profile()


def _run_decode(engine: Any, prompts: list[list[int]], steps: int, width: int, settings: dict[str, Any]) -> tuple[float, float]:
    """Generate, and profile ``steps`` batches from the moment every request has two tokens.

    Returns:
        Tokens that a request had generated by then, and tokens it got per step, both averaged over the requests.
    """
    produced = [0] * len(prompts)
    verified = [0] * len(prompts)
    before: float | None = None
    for chunk in engine.generate(input_ids=prompts, sampling_params=_sampling((steps + SLACK_STEPS) * width), stream=True):
        meta = chunk["meta_info"]
        produced[chunk.get("index", 0)] = meta["completion_tokens"]
        verified[chunk.get("index", 0)] = meta.get("spec_verify_ct") or 0
        if before is None and min(produced) >= 2:
            before = sum(produced) / len(produced)
            engine.start_profile(num_steps=steps, **settings)
    if before is None:
        raise ValueError(f"a request of {len(prompts)} produced no two tokens; shorten the prompts to fit the engine's context length")
    return before, sum(produced) / sum(verified) if sum(verified) else 1.0


def _written(engine: Any, folder: Path, name: str) -> Path:
    """The trace of rank 0; SGLang writes it before the batch that follows the profile."""
    found = sorted(folder.glob(f"{name}-TP-0*.trace.json.gz"))
    if not found:
        engine.stop_profile()  # it is still waiting for steps that never came
        raise ValueError(f"the requests ended before the profile {name} did, after {SLACK_STEPS} steps more than asked for; profile fewer")
    return found[0]


def _check(stage: str, covered: list[Step], batch: int, steps: int, prompt_tokens: int) -> None:
    if stage == "prefill":
        tokens = sum(step.tokens or 0 for step in covered)
        if tokens != steps * prompt_tokens:
            raise ValueError(
                f"the profile covers {tokens} prefill tokens, not {steps} x {prompt_tokens}; give prompts that share no prefix"
            )
        return
    batches = sorted({step.batch for step in covered})
    if batches != [batch]:
        raise ValueError(
            f"decode steps of {batches} requests were profiled, not of {batch}; "
            "raise --max-running-requests or the KV pool, or lower the batch"
        )
    if len(covered) != steps:
        raise ValueError(f"the profile covers {len(covered)} decode steps, not {steps}; profile fewer")
