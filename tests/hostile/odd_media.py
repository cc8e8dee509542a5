"""Odd images, sounds and videos: every mode and size, cut, mislabelled, under odd addresses, in odd numbers."""

import base64
import functools
import io
import struct
import wave
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

from tests.hostile.bases import ASK, CHAT, MODEL
from tests.hostile.exchange import Request, json_request

MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16")
SIZES = ((1, 1), (1, 7), (15, 16), (48, 48), (1, 1_000), (1_500, 1), (224, 224), (640, 480))
KINDS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "ICO")


@functools.cache
def image(mode: str, size: tuple[int, int], kind: str) -> bytes:
    """An image file; empty where the kind cannot hold the mode."""
    from PIL import Image

    buffer = io.BytesIO()
    try:
        Image.new(mode, size).save(buffer, kind)
    except (OSError, ValueError, KeyError):
        return b""
    return buffer.getvalue()


def sound(seconds: float = 0.2, rate: int = 16_000, channels: int = 1, width: int = 2) -> bytes:
    """A WAV file of silence."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(b"\x00" * (int(seconds * rate) * channels * width))
    return buffer.getvalue()


def _png_saying(width: int, height: int) -> bytes:
    """A PNG that says it is this large and holds one row of nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\x00" * 1000)) + chunk(b"IEND", b"")


def _bomb() -> bytes:
    """A few kB of PNG that are 100 million pixels."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(buffer, "PNG")
    return buffer.getvalue()


def _frames() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    pictures = [Image.new("P", (16, 16), n) for n in range(60)]
    pictures[0].save(buffer, "GIF", save_all=True, append_images=pictures[1:])
    return buffer.getvalue()


def _turned() -> bytes:
    """A JPEG with odd EXIF data."""
    from PIL import Image

    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 77
    Image.new("RGB", (30, 20)).save(buffer, "JPEG", exif=exif)
    return buffer.getvalue()


PNG = functools.partial(image, "RGB", (48, 48), "PNG")
FILES: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "text": lambda: b"hello",
    "PNG cut": lambda: PNG()[:40],
    "PNG one byte": lambda: PNG()[:1],
    "PNG broken": lambda: PNG()[:45] + b"\xff" * 20 + PNG()[65:],
    "PNG says 2^31": lambda: _png_saying(2**31 - 1, 2**31 - 1),
    "PNG says 30,000": lambda: _png_saying(30_000, 30_000),
    "PNG says 0": lambda: _png_saying(0, 0),
    "bomb": _bomb,
    "60 frames": _frames,
    "JPEG cut": lambda: image("RGB", (224, 224), "JPEG")[:300],
    "JPEG gray cut": lambda: image("L", (224, 224), "JPEG")[:300],
    "JPEG start alone": lambda: b"\xff\xd8\xff\xe0",
    "JPEG odd EXIF": _turned,
    "SVG": lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "ZIP": lambda: b"PK\x03\x04" + b"\x00" * 100,
    "PDF": lambda: b"%PDF-1.4\n",
    "random": lambda: bytes((n * 7919) % 256 for n in range(5_000)),
    "WAV": sound,
    "WAV empty": lambda: sound(0),
    "WAV one sample": lambda: sound(1 / 16_000),
    "WAV 8 bit": lambda: sound(width=1),
    "WAV 8 channels": lambda: sound(channels=8),
    "WAV 1 Hz": lambda: sound(3, rate=1),
    "WAV 384 kHz": lambda: sound(0.05, rate=384_000),
    "WAV cut": lambda: sound()[:60],
    "WAV header cut": lambda: sound()[:20],
    "WAV says 4 GB": lambda: sound()[:40] + b"\xff\xff\xff\xff" + sound()[44:],
    "WAV no channel": lambda: sound()[:22] + b"\x00\x00" + sound()[24:],
    "WAV rate 0": lambda: sound()[:24] + b"\x00\x00\x00\x00" + sound()[28:],
    "WAV float nan": lambda: sound()[:20] + b"\x03\x00" + sound()[22:34] + b"\x20\x00" + sound()[36:44] + b"\x00\x00\xc0\x7f" * 800,
    "MP3 start": lambda: b"ID3\x04\x00\x00\x00\x00\x00\x00" + b"\xff\xfb\x90" * 50,
    "MP4 start": lambda: b"\x00\x00\x00\x20ftypisom" + b"\x00" * 200,
    "OGG start": lambda: b"OggS" + b"\x00" * 60,
}
MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "audio/wav", "video/mp4", "text/plain", "application/octet-stream", "", "image/;;;")
ADDRESSES = (
    *(
        "/etc/passwd",
        "file:///etc/passwd",
        "/nonexistent/x.png",
        "file:///nonexistent/x.png",
        "../../etc/hosts",
        "/dev/zero",
        "/dev/stdin",
        "/proc/self/mem",
    ),
    *(
        "http://127.0.0.1:1/x.png",
        "https://127.0.0.1:1/x.png",
        "http://[::1]:1/x",
        "ftp://127.0.0.1/x",
        "http://",
        "http://no-such-host.invalid/x.png",
    ),
    *(
        "data:",
        "data:,",
        "data:image/png",
        "data:image/png;base64,",
        "data:image/png;base64,####",
        "data:image/png;base64,AAAA=A",
        "data:image/png,%89PNG",
    ),
    *(
        "",
        " ",
        "x",
        "\x00",
        "\ud800",
        "a" * 5_000,
        "AAAA",
        "blob:x",
        "javascript:1",
        "//host/x",
        "http://a b/",
        "http://\x00/",
        "data:image/png;base64," + "A" * 60_000,
    ),
)
PLACES: dict[str, Callable[[Any], Any]] = {
    "image_url": lambda url: {"type": "image_url", "image_url": {"url": url}},
    "image_url text": lambda url: {"type": "image_url", "image_url": url},
    "image_url detail": lambda url: {"type": "image_url", "image_url": {"url": url, "detail": "huge"}},
    "video_url": lambda url: {"type": "video_url", "video_url": {"url": url}},
    "audio_url": lambda url: {"type": "audio_url", "audio_url": {"url": url}},
    "input_audio": lambda url: {"type": "input_audio", "input_audio": {"data": url.rpartition(",")[2], "format": "wav"}},
}


def _address(random: Random) -> tuple[str, str]:
    """A name and an address: a file in a data URL, or a place that is not to be read."""
    draw = random.random()
    if draw < 0.35:
        mode, size, kind = random.choice(MODES), random.choice(SIZES), random.choice(KINDS)
        return f"{mode} {kind} {size[0]}x{size[1]}", _data(random, image(mode, size, kind) or PNG())
    if draw < 0.75:
        name = random.choice(list(FILES))
        return name, _data(random, FILES[name]())
    address = random.choice(ADDRESSES)
    return f"address {address[:24]!r}", address


def _data(random: Random, content: bytes) -> str:
    return f"data:{random.choice(MEDIA_TYPES)};base64,{base64.b64encode(content).decode()}"


def media(random: Random) -> Request:
    """A medium, or some, in a chat's message or beside a prompt of /generate."""
    names, parts, given = [], [], []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        (name, address), place = _address(random), random.choice(("image_url", *PLACES))
        names.append(f"{place} {name}")
        parts.append(PLACES[place](address))
        given.append(address)
    kind = f"media {' + '.join(names)}"
    draw = random.random()
    if draw < 0.25:
        return _beside_prompt(random, kind, given)
    if draw < 0.32:
        return _other_api(random, kind, given[0])
    asked = random.choice((ASK, "", "<|image><image|> <|audio><audio|> <|image|>", "<|image|>" * 300))
    content = [*parts, {"type": "text", "text": asked}]
    return json_request(
        kind, "/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": content}], "stream": random.random() < 0.2}
    )


def _beside_prompt(random: Random, kind: str, addresses: list[str]) -> Request:
    key = random.choice(("image_data", "image_data", "audio_data", "video_data"))
    value = random.choice((addresses, addresses[0], [addresses], {"url": addresses[0]}, [None, *addresses]))
    prompt = random.choice(({"text": "<|image|> " + ASK}, {"text": ASK}, {"input_ids": [2, 5, 4, 4, 6, 300]}, {"text": [ASK, ASK]}))
    return json_request(f"{kind} as {key}", "/generate", {**prompt, key: value, "sampling_params": {"max_new_tokens": 2}})


def _other_api(random: Random, kind: str, address: str) -> Request:
    data = address.rpartition(",")[2]
    source = random.choice(({"type": "base64", "media_type": "image/png", "data": data}, {"type": "url", "url": address}, {"type": "file"}))
    bodies: dict[str, Any] = {
        "/v1/messages": {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]},
        "/v1/responses": {
            "model": MODEL,
            "max_output_tokens": 4,
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": address}, {"type": "input_text", "text": ASK}]}],
        },
        "/api/chat": {
            "model": MODEL,
            "stream": False,
            "messages": [{"role": "user", "content": ASK, "images": [data]}],
            "options": {"num_predict": 2},
        },
        "/api/generate": {"model": MODEL, "stream": False, "prompt": ASK, "images": [data], "options": {"num_predict": 2}},
    }
    path = random.choice(list(bodies))
    return json_request(f"{kind} in {path}", path, bodies[path])


def upload(random: Random) -> Request:
    """A form with a sound for /v1/audio/transcriptions, or hardly one."""
    name = random.choice(list(FILES))
    boundary = random.choice(("hostile", "hostile", "hostile", "", "x" * 300))
    field = f'--{boundary}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{MODEL}\r\n'
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    body = field.encode() + head.encode() + FILES[name]() + f"\r\n--{boundary}--\r\n".encode()
    body = random.choice((body, body, body, body[:-8], body[: len(body) // 3], b""))
    return Request(
        f"upload {name}", "/v1/audio/transcriptions", body, headers=(("Content-Type", f"multipart/form-data; boundary={boundary}"),)
    )
