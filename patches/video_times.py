"""Frames of a video are chosen and labelled with their times as in transformers."""

from sglang_gemma4.patching import Hook, Patch, uses

PROCESSOR = "sglang.srt.multimodal.processors.gemma4.Gemma4SGLangProcessor"

PATCH = Patch(
    switch="SGLANG_GEMMA4_MEDIA_FIXES",
    why="Stock hands frames to the processor without their times: 32 frames of a minute are labelled 00:00 and 00:01. It fails on frames "
    "that a card decoded, and shows all frames of a list, however many.",
    evidence="srt/multimodal/processors/gemma4.py:81 (_video_decoder_to_tensor) · transformers processing_gemma4.py:182 · "
    "crash_repro/video_times.py",
    remove_when="Gemma4SGLangProcessor passes video_metadata.",
    uses=(uses.media,),
    hooks=(Hook(f"{PROCESSOR}.process_mm_data", "around", "sglang_gemma4.serving.media.video:with_times", "c9319d6bf9b8"),),
)
