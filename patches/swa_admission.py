"""A prefill is admitted only into sliding-pool tokens that running requests will not take."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch


def reserve_growth(_result: None, adder: Any, *_args: Any, **_kwargs: Any) -> None:
    """After SGLang reserved what running requests will take of the full pool: the same for the sliding pool."""
    batch = adder.running_batch
    if batch is None or not batch.reqs or not _is_gemma4(batch) or type(adder.memory_budget).__name__ != "SWAPrefillBudget":
        return
    if adder.memory_budget.req_ring or not adder.tree_cache.sliding_window_size:
        return
    from sglang_gemma4.memory import swa_admission

    adder.memory_budget.swa_offset += swa_admission.running_growth(adder)


def _is_gemma4(batch: Any) -> bool:
    return any(name.startswith("Gemma4") for name in getattr(batch.model_config.hf_config, "architectures", None) or ())


PATCH = Patch(
    switch="SGLANG_GEMMA4_SWA_ADMISSION",
    why="Stock reserves nothing of the sliding pool for running requests: it admits too many, then retracts and prefills them again.",
    evidence="srt/managers/schedule_policy.py:673 (total_offset only) · mem_cache/prefill_budget.py:102 (swa_offset = 0) · not yet "
    "measured on a GPU: where one more request just does not fit, waiting can cost more than a retraction",
    remove_when="PrefillAdder offsets swa_offset by what running requests will take.",
    hooks=(Hook("sglang.srt.managers.schedule_policy.PrefillAdder.__init__", "after", reserve_growth, "901ca00e6d44"),),
)
