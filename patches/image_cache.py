"""After a weight update images and sounds are encoded again."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses

UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"


def forget(_result: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``flush_cache_after_weight_update``, also where the update asked for no flush: other weights, other embeddings."""
    from sglang.srt.managers import mm_schedule

    if mm_schedule.embedding_cache is not None:
        mm_schedule.embedding_cache.clear()


PATCH = Patch(
    switch="SGLANG_GEMMA4_WEIGHT_UPDATES",
    why="Stock keeps the embeddings of images and sounds over a weight update: the same picture is answered from the old tower.",
    evidence="srt/managers/scheduler_components/weight_updater.py:122 · srt/managers/scheduler.py:5518 (flush_cache) · "
    "srt/managers/mm_schedule.py:383 · crash_repro/image_cache_update.py",
    remove_when="SGLang's flush after a weight update clears mm_schedule.embedding_cache.",
    uses=(uses.media,),
    hooks=(Hook(f"{UPDATER}.flush_cache_after_weight_update", "after", forget, "7c23e3ef657a"),),
)
