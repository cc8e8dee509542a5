"""E2B and E4B get a soft token more of a sound than transformers gives them, for a quarter of all lengths. Needs no GPU.

SGLang fills sounds with silence up to a multiple of 320 samples, since an older processor counted one token too many; 5.19 counts what the
audio tower gives.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]

RATE, SAMPLES = 16_000, 32_777
TEXT = "<bos>What is said <|audio|> here?"


def main() -> int:
    """Tokens of a prompt with a sound of 2.05 seconds."""
    import numpy
    import soundfile  # type: ignore[import-untyped]

    from sglang_gemma4.tiny import audio

    with tempfile.TemporaryDirectory() as name:
        model, path = audio.write(Path(name) / "model"), Path(name) / "sound.wav"
        sound = (0.2 * numpy.sin(2 * numpy.pi * 440 * numpy.arange(SAMPLES) / RATE)).astype("float32")
        soundfile.write(path, sound, RATE, subtype="FLOAT")
        expected = counted(model, sound)
        seen = engines.ask(model, "audio_padding:count", {"text": TEXT, "sound": str(path)}, skip_tokenizer_init=False)
    return int(case.verdict(expected, seen))


def counted(model: Path, sound: Any) -> int:
    """By transformers' processor."""
    from transformers import AutoProcessor

    inputs = AutoProcessor.from_pretrained(model)(text=[TEXT], audio=[sound], return_tensors="pt", add_special_tokens=False)
    return int(inputs["input_ids"].shape[1])


def count(engine: Any, extra: dict[str, str]) -> int:
    """The client."""
    answer = engine.generate(prompt=extra["text"], audio_data=extra["sound"], sampling_params={"max_new_tokens": 1, "temperature": 0})
    return int(answer["meta_info"]["prompt_tokens"])


if __name__ == "__main__":
    sys.exit(main())
