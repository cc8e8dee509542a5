"""A prefill goes through the target together with the decode or verify rows of the running requests."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


def next_batches(original: Callable[..., Any], scheduler: Any, running_batch: Any, last_batch: Any) -> Any:
    """Around ``get_next_batch_to_run``: the running batch is made ready beside a prefill, which is no longer than the operator wants."""
    from sglang_gemma4.speculative import prefill_beside, prompt_chunks

    with prompt_chunks.bounded(scheduler, running_batch, last_batch, prefill_beside.next_problem):
        plan = original(scheduler, running_batch=running_batch, last_batch=last_batch)
    return prefill_beside.choose(scheduler, plan)


def gather(original: Callable[..., bool], scheduler: Any, running_batch: Any) -> bool:
    """Around ``_should_defer_prefill``."""
    from sglang_gemma4.speculative import prefill_beside, prompt_chunks

    return original(scheduler, running_batch) or prompt_chunks.gathers(scheduler, running_batch, prefill_beside.next_problem)


def run_both(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``run_batch``."""
    from sglang_gemma4.speculative import prefill_beside

    return prefill_beside.run(original, scheduler, batch, *args, **kwargs)


def process_both(original: Callable[..., None], scheduler: Any, batch: Any, result: Any) -> None:
    """Around ``process_batch_result``."""
    from sglang_gemma4.speculative import prefill_beside, prompt_chunks

    for ran in prefill_beside.results(batch, result):
        original(scheduler, *ran)
    prompt_chunks.arrived(result)


def advance_both(_result: None, scheduler: Any) -> None:
    """After ``_advance_pending_grammar``, which knows one batch of a queued step: verify reads grammars that the running batch advanced."""
    from sglang_gemma4.speculative import prefill_beside

    for batch, result in scheduler.result_queue:
        for ran, of_ran in prefill_beside.results(batch, result)[:-1]:
            scheduler.batch_result_processor.advance_grammar_fsm(of_ran, ran)


def one_forward(original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``ModelRunner.forward``."""
    from sglang_gemma4.speculative import prefill_beside

    pair = prefill_beside.open_pair(runner)
    if pair is None:
        return original(runner, forward_batch, *args, **kwargs)
    return pair.forward(original, runner, forward_batch, *args, **kwargs)


def no_graph(original: Callable[..., bool], graphs: Any, forward_batch: Any) -> bool:
    """Around ``DecodeCudaGraphRunner.can_run_graph``: the target's decode graphs have no rows for a prompt. A draft's are its own."""
    from sglang_gemma4.speculative import prefill_beside

    return prefill_beside.open_pair(graphs.model_runner) is None and original(graphs, forward_batch)


PATCH = Patch(
    name="prefill_beside",
    switch="SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY",
    does="Prompts are prefilled in the same forward as the decode or verify rows of the running requests.",
    why="Stock runs a prefill or the running batch: while a queue is admitted, decode falls to a third. It refuses mixed chunks under MTP, "
    "and elsewhere sends decode rows through the prefill kernel.",
    evidence="srt/managers/scheduler.py:3992-4003 · srt/arg_groups/speculative_hook.py:1002 · srt/managers/schedule_batch.py:3267 · "
    "tests/engine/test_prefill_beside.py · not measured yet",
    remove_when="SGLang verifies drafts and prefills in one forward.",
    hooks=(
        Hook(f"{SCHEDULER}.get_next_batch_to_run", "around", next_batches, "9c5ef6348963"),
        Hook(f"{SCHEDULER}._should_defer_prefill", "around", gather, "ed4f8b727d43"),
        Hook(f"{SCHEDULER}.run_batch", "around", run_both, "c314c0d4b02c"),
        Hook(f"{SCHEDULER}.process_batch_result", "around", process_both, "a67c683e5347"),
        Hook(f"{SCHEDULER}._advance_pending_grammar", "after", advance_both, "e12dc03ec5c1"),
        Hook("sglang.srt.model_executor.model_runner.ModelRunner.forward", "around", one_forward, "26fbd69d3377"),
        Hook(
            "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.can_run_graph",
            "around",
            no_graph,
            "28a2e06aebae",
        ),
        Hook(
            "sglang.srt.layers.attention.triton_backend.update_sliding_window_buffer",
            "around",
            "sglang_gemma4.models.schedule.joined_forward:window_buffers",
            "4e495713bb1e",
        ),
        Hook(
            "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration.prepare_attn_masks",
            "around",
            "sglang_gemma4.models.schedule.joined_forward:masks_of_parts",
            "5fa09fbdafa9",
        ),
        Hook(
            "sglang.srt.layers.logits_processor.LogitsProcessor.forward",
            "around",
            "sglang_gemma4.models.schedule.joined_forward:logits_of_each",
            "1bccba122f1d",
        ),
    ),
)
