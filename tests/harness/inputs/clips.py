"""Short videos, made by ffmpeg: a counter that runs, so that every frame is another picture."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

MISSING = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg here, whose libraries decode videos; .ci/run installs it")


@dataclass(frozen=True)
class Clip:
    """What a video is like.

    Attributes:
        rate: frames per second, as ffmpeg writes it.
        drawn: the source of ffmpeg that draws the frames.
        keep: one of ffmpeg's ``select`` expressions for the frames that are kept, each at its time: a rate that varies.
    """

    seconds: float
    rate: str
    size: str = "96x64"
    suffix: str = "mp4"
    keep: str = ""
    drawn: str = "testsrc"


CLIPS = {
    "a minute": Clip(64, "5"),
    "ten frames": Clip(1, "10", "64x96"),
    "film rate": Clip(4, "30000/1001", "60x60", "mkv"),
    "uneven": Clip(70, "4", "48x48", "mkv", keep="lt(mod(n\\,16)\\,5)"),
    "one frame": Clip(0.2, "5"),
    "red, a minute": Clip(64, "1", drawn="color=red"),
    "red, half a minute": Clip(32, "2", drawn="color=red"),
}


def make(folder: Path, name: str) -> Path:
    """Write the clip to ``folder`` and return its path."""
    clip = CLIPS[name]
    path = folder / f"{name.replace(',', '').replace(' ', '-')}.{clip.suffix}"
    select = ["-vf", f"select='{clip.keep}'", "-fps_mode", "vfr"] if clip.keep else []
    source = f"{clip.drawn}{':' if '=' in clip.drawn else '='}size={clip.size}:rate={clip.rate}:duration={clip.seconds}"
    codec = ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-threads", "1"]
    command = ["ffmpeg", "-loglevel", "error", "-y", "-f", "lavfi", "-i", source, *select, *codec, str(path)]
    subprocess.run(command, check=True, timeout=120)
    return path
