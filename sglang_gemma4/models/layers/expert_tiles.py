"""Files of measured tiles for the experts' GEMMs, in SGLang's format: a JSON object of tiles by number of tokens."""

import functools
import json
from pathlib import Path
from typing import Any

from sglang_gemma4.patching import takes

FOLDER = Path(__file__).parents[2] / "kernels" / "experts" / "moe_tiles"
NEEDED = {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M"}
Tiles = dict[int, dict[str, Any]]


def file_name(experts: int, inner: int, device: str, down: bool) -> str:
    """SGLang's name for the tiles of 16-bit experts on ``device``; ``down``: of the second GEMM."""
    return f"E={experts},N={inner},device_name={device.replace(' ', '_')}{'_down' if down else ''}.json"


def read(path: Path) -> Tiles:
    """Tiles by number of tokens.

    Raises:
        ValueError: the file is not what :func:`write` writes.
    """
    try:
        tiles = {int(tokens): dict(tile) for tokens, tile in json.loads(path.read_text()).items()}
    except (json.JSONDecodeError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a file of tiles: {error}") from error
    for tokens, tile in tiles.items():
        if missing := NEEDED - set(tile):
            raise ValueError(f"{path} lacks {', '.join(sorted(missing))} at {tokens} tokens")
    if not tiles:
        raise ValueError(f"{path} holds no tiles")
    return tiles


def write(path: Path, tiles: Tiles) -> None:
    """Write ``tiles`` to the file; its tiles for other numbers of tokens stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    merged = {**(read(path) if path.exists() else {}), **tiles}
    path.write_text(json.dumps({str(tokens): merged[tokens] for tokens in sorted(merged)}, indent=2) + "\n")


@functools.cache
def for_server(experts: int, inner: int, down: bool, folder: Path = FOLDER) -> Tiles | None:
    """The tiles for this GPU, or None with a note that says how to make them.

    Both files or neither: rows are gathered once for both GEMMs, so their tiles belong together.
    """
    from sglang.srt.utils import get_device_name

    device = str(get_device_name())
    paths = [folder / file_name(experts, inner, device, each) for each in (False, True)]
    if not all(path.exists() for path in paths):
        takes("moe_tiles", f"no tiles for E={experts}, N={inner} on {device}: SGLang's own are used; `sglang-gemma4 tune-moe` makes them")
        return None
    try:
        found = read(paths[int(down)])
    except ValueError as error:
        takes("moe_tiles", f"SGLang's own tiles are used: {error}")
        return None
    takes("moe_tiles", None)
    return found
