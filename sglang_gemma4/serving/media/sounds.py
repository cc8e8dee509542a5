"""Limits the length of audio: long enough for one soft token, and no longer than the model was made for."""

from typing import Any

from sglang_gemma4.serving.media.decoding import RATE, TAIL, too_long

SAMPLES_A_TOKEN = 640
"""Samples per soft token at 16 kHz: 40 ms, the models' ``audio_ms_per_token``."""


def least(processor: Any) -> int:
    """The fewest samples at 16 kHz of which transformers' processor makes a soft token.

    The first spectrum is centred on the first sample, and counts if the second half of its window and one more sample are audio. The
    encoder-free model pads its only frame with silence.
    """
    extractor = processor.feature_extractor
    return int(extractor.frame_length) // 2 + 1 if hasattr(extractor, "frame_length") else 1


def longest(processor: Any) -> int:
    """The samples at 16 kHz that fill the model's ``audio_seq_length`` soft tokens: 480,000, which are 30 s."""
    return int(processor.audio_seq_length) * SAMPLES_A_TOKEN


def cuts(processor: Any) -> bool:
    """Whether the operator has long audio cut; ``processor`` is SGLang's Gemma 4 processor."""
    return bool(processor.audio_config.get("truncation"))


def judge(sounds: list[Any], processor: Any, cut: bool) -> None:
    """Check decoded audio at 16 kHz, each of shape [samples], and cut an encoder's padding beyond the model's longest audio.

    Args:
        sounds: the audio, changed in place.
        processor: transformers' Gemma 4 processor.
        cut: whether the operator has long audio cut.

    Raises:
        ValueError: audio is too short for a soft token, or longer than the model takes.
    """
    fewest, most = least(processor), longest(processor)
    for number, sound in enumerate(sounds):
        if isinstance(sound, dict):
            continue
        length = len(sound)
        if length < fewest:
            raise ValueError(
                f"audio_data: clip {number} is {1000 * length / RATE:.1f} ms long, {length} samples of 16 kHz, and is too short to "
                f"produce one audio token; send at least {fewest} samples, {1000 * fewest / RATE:.1f} ms"
            )
        if length > most + TAIL and not cut:
            raise ValueError(too_long(f"audio_data: clip {number}", length / RATE, most))
        if length > most:
            sounds[number] = sound[:most]
