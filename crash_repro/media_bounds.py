"""A few kB stand for gigabytes, and a slow server holds a loading thread for hours. Needs no GPU and no engine."""

import io
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import case  # type: ignore[import-not-found]
import tool_answers  # type: ignore[import-not-found]

PATIENCE = 8.0
"""Seconds; SGLang allows an image three."""


def main() -> int:
    """What becomes of a sound whose rate needs a filter of 2 GiB, of an hour of silence, and of a server that sends a byte a second."""
    tool_answers.load()
    from sglang.srt.utils import common

    from sglang_gemma4.serving.media import served

    served.mark()  # as a server of Gemma 4 does, whose processor is made before it loads
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=dribble, args=(listener,), daemon=True).start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/picture.png"
    seen = {
        "9001 samples a second": outcome(lambda: common.load_audio(sound(100, 9001))),
        "an hour": outcome(lambda: common.load_audio(sound(16_000 * 3600, 16_000))),
        "100 million pixels": outcome(lambda: common.load_image(image())),
        "a byte a second": outcome(lambda: common.load_image(address)),
    }
    return int(case.verdict(dict.fromkeys(seen, "refused"), seen))


def outcome(load: Callable[[], Any]) -> str:
    """Whether a medium is loaded, refused, or neither in time."""
    found: list[str] = []

    def run() -> None:
        try:
            load()
            found.append("loaded")
        except ValueError as error:
            print(error)
            found.append("refused")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return found[0] if found else f"nothing within {PATIENCE:.0f} s"


def sound(samples: int, rate: int) -> bytes:
    """Silence, as FLAC: an hour is 70 kB."""
    import numpy
    import soundfile  # type: ignore[import-untyped]

    written = io.BytesIO()
    soundfile.write(written, numpy.zeros(samples, "int16"), rate, format="FLAC")
    return written.getvalue()


def image() -> bytes:
    """White, of one bit a pixel: 14 kB."""
    from PIL import Image

    written = io.BytesIO()
    Image.new("1", (10_000, 10_000), 1).save(written, "PNG")
    return written.getvalue()


def dribble(listener: socket.socket) -> None:
    """Answer one request, with a byte of the body each second."""
    connection = listener.accept()[0]
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
