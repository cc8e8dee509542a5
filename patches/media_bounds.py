"""Images and sounds are decoded within bounds; nvJPEG gets RGB images only; downloads end in time."""

from sglang_gemma4.patching import Hook, Patch, uses

COMMON = "sglang.srt.utils.common"
OURS = "sglang_gemma4.serving.media"

PATCH = Patch(
    switch="SGLANG_GEMMA4_REQUEST_CHECKS",
    why="nvJPEG returns a grayscale or CMYK JPEG with one or four channels, and a matrix of the wrong width ends stock's scheduler. Stock "
    "decodes what a few kB claim to hold: images up to 179 million pixels each, sounds of any length, and 2 GiB for the filter of a sound "
    "of 9001 Hz. A server that sends media byte by byte holds a loading thread for hours. Transformers turns images by "
    "EXIF tags; stock none.",
    evidence="srt/utils/common.py:2084-2110 (mode UNCHANGED) · :1893 (iter_content) · :1900-2000 (sf.read, resample) · "
    "crash_repro/grayscale_jpeg.py, turned_images.py, media_bounds.py",
    remove_when="SGLang asks nvJPEG for RGB, judges headers before it decodes, and ends downloads by the clock.",
    uses=(uses.media,),
    hooks=(
        Hook("sglang.srt.multimodal.processors.gemma4.Gemma4SGLangProcessor.__init__", "after", f"{OURS}.served:mark", "a68fa6711fb8"),
        Hook(f"{COMMON}.load_image", "around", f"{OURS}.pictures:load", "eb18e23c5715"),
        Hook(f"{COMMON}.load_audio", "around", f"{OURS}.decoding:load_sound_within", "a6f425c25d8f"),
        Hook(f"{COMMON}._fully_load_pil_image", "before", f"{OURS}.decoding:judge_image", "cea292a8d9b5"),
        Hook(f"{COMMON}.is_jpeg_with_cuda", "after", f"{OURS}.pictures:plain_jpeg", "c33de6d9e1b2"),
        Hook("sglang.srt.multimodal.audio_from_video._append_resampled_frames", "after", f"{OURS}.decoding:count_samples", "22241c093189"),
        Hook(
            "sglang.srt.multimodal.processors.gemma4.Gemma4SGLangProcessor._video_decoder_to_tensor",
            "before",
            f"{OURS}.decoding:judge_video",
            "f52c8f82ac29",
        ),
        Hook(f"{COMMON}.get_mm_http_session", "around", f"{OURS}.downloads:watched_session", "0385f1044a0b"),
        Hook(f"{COMMON}.download_remote_media", "around", f"{OURS}.downloads:download", "44201d3b101a"),
    ),
)
