"""What an engine ran together, in its log: ``TEST_SABOTAGE`` names ``watch``, ``overlapped`` or ``retracting``.

Each forward of two batches gives a line ``BESIDE {"prefilled": […], "running": […], "rows": [prompt rows, running rows]}``; the rest is
``mtp_trace``'s.
"""

import importlib
import json
from typing import Any


def watch() -> None:
    """As ``mtp_trace.watch``."""
    importlib.import_module("mtp_trace").watch()
    _trace()


def overlapped() -> None:
    """In an engine that may overlap."""
    importlib.import_module("loop_modes").overlapping()
    _trace()


def retracting() -> None:
    """In an engine that may overlap; and requests of the running batch are retracted again and again."""
    importlib.import_module("loop_modes").overlapped()
    _trace()


def _trace() -> None:
    joined: Any = importlib.import_module("sglang_gemma4.models.schedule.joined_forward")
    original = joined.forward

    def forward(runner: Any, prefill: Any, running: Any, *args: Any) -> Any:
        rows = [batch.input_ids.shape[0] for batch in (prefill, running)]
        print("BESIDE", json.dumps({"prefilled": prefill.rids, "running": running.rids, "rows": rows}), flush=True)
        return original(runner, prefill, running, *args)

    joined.forward = forward
