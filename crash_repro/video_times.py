"""Frames of a video of 64 seconds are labelled 00:00 and 00:01. Needs no GPU and no FFmpeg: the decoder is a counter."""

import re
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import scripted_server  # type: ignore[import-not-found]
import tool_answers  # type: ignore[import-not-found]

SECONDS, RATE = 64, 10
EXPECTED = [f"{second // 60:02d}:{second % 60:02d}" for second in range(0, SECONDS, 2)]
"""Of 640 frames 32 are shown, each 20th."""


def main() -> int:
    """The labels that SGLang's processor writes between the frames."""
    tool_answers.load()
    from sglang.srt import runtime_context
    from sglang.srt.multimodal.processors.gemma4 import Gemma4SGLangProcessor
    from sglang.srt.server_args import ServerArgs
    from transformers import AutoConfig, AutoProcessor

    model = scripted_server.FOLDER
    runtime_context.publish(ServerArgs(model_path=str(model), device="cpu"), role="tokenizer")
    made: Any = Gemma4SGLangProcessor
    processor = made(AutoConfig.from_pretrained(model), None, AutoProcessor.from_pretrained(model), "default")
    found = processor.process_mm_data(input_text="<bos>See <|video|>", videos=[counter()])
    text = processor._tokenizer.decode(found["input_ids"][0].tolist())
    return int(case.verdict(EXPECTED, re.findall(r"\d\d:\d\d", text)))


def counter() -> Any:
    """SGLang's decoder over frames that are drawn when they are asked for."""
    import numpy
    from sglang.srt.utils.video_decoder import VideoDecoderWrapper

    class Counter(VideoDecoderWrapper):
        avg_fps = float(RATE)  # type: ignore[assignment]
        frame_shape = (48, 60)  # type: ignore[assignment]

        def __init__(self) -> None:
            self._tmp_path = None

        def __len__(self) -> int:
            return SECONDS * RATE

        def get_frames_at(self, indices: list[int]) -> Any:
            return numpy.stack([numpy.full((48, 60, 3), index % 251, numpy.uint8) for index in indices])

    return Counter()


if __name__ == "__main__":
    sys.exit(main())
