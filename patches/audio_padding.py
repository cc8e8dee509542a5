"""A sound is not filled with silence before it is encoded."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses


def pad_nothing(_multiple: int, *_args: Any) -> int:
    """After ``Gemma4SGLangProcessor._get_audio_pad_multiple``: every length is a multiple of 1."""
    return 1


PATCH = Patch(
    switch="SGLANG_GEMMA4_MEDIA_FIXES",
    why="Stock fills a sound with silence up to a multiple of 320 samples, since an old processor counted one soft token too many. "
    "transformers 5.19 counts what the tower gives: a quarter of all lengths get a soft token that transformers does not have.",
    evidence="srt/multimodal/processors/gemma4.py:66 · transformers 5.19 models/gemma4/processing_gemma4.py:192 · "
    "crash_repro/audio_padding.py",
    remove_when="Gemma4SGLangProcessor leaves the lengths of sounds to the processor.",
    uses=(uses.audio,),
    hooks=(
        Hook("sglang.srt.multimodal.processors.gemma4.Gemma4SGLangProcessor._get_audio_pad_multiple", "after", pad_nothing, "780ba8238574"),
    ),
)
