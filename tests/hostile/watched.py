"""A server with the heartbeat in it: SGLang finds it as a plugin, beside this package or with ``SGLANG_GEMMA4=0``."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.hostile import heartbeat

ROOT = Path(__file__).parents[2]


def environment(folder: Path) -> dict[str, str]:
    """Variables under which a server writes its long steps to ``folder``; the plugin is made known there."""
    information = folder / "plugins" / "hostile_heartbeat-1.dist-info"
    information.mkdir(parents=True, exist_ok=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile-heartbeat\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[sglang.srt.plugins]\nhostile_heartbeat = tests.hostile.heartbeat:install\n")
    paths = [os.environ.get("PYTHONPATH", ""), str(folder / "plugins"), str(ROOT)]
    return {heartbeat.FILE: str(steps_file(folder)), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def steps_file(folder: Path) -> Path:
    """The file of long steps of the server whose folder this is."""
    return folder / "steps.jsonl"


def steps(folder: Path) -> list[dict[str, Any]]:
    """The long steps so far: ``what``, ``ms``, ``name``, ``number`` of the request, ``where``, ``at`` (seconds since 1970)."""
    file = steps_file(folder)
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def longest(found: list[dict[str, Any]], *kinds: str) -> Mapping[str, Any]:
    """The longest of some kinds of steps."""
    return max(
        (step for step in found if step["what"] in kinds), key=lambda step: float(step["ms"]), default={"ms": 0.0, "name": "", "where": []}
    )
