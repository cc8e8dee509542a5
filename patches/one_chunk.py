"""A prompt that is cut into chunks is the last of its batch: of two, stock answers one from its first chunk."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch


def be_the_last(_result: Any, adder: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``PrefillAdder.add_one_req``: behind a prompt that was cut nothing is left of the chunk's budget."""
    if adder.new_chunked_req is not None and adder.rem_chunk_tokens is not None:
        adder.rem_chunk_tokens = 0


PATCH = Patch(
    switch="SGLANG_GEMMA4_MODEL_FIXES",
    why="A cut that ends with a page, or where sliding tokens end, leaves budget, with which another prompt may be cut in the same batch.",
    evidence="srt/managers/schedule_policy.py:1353-1371, 1661, 1693 · srt/managers/scheduler.py:4327 · crash_repro/two_chunks.py",
    remove_when="PrefillAdder cuts no second prompt of a batch.",
    hooks=(Hook("sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req", "after", be_the_last, "194314fb5aba"),),
)
