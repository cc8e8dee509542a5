"""Count what waits for the device in MTP decode steps: ``TEST_INSTRUMENTS=tests.gpu.sync_counter:install`` in a case's environment.

PyTorch's sync debug mode warns at every call that blocks the host on the card (``.item()``, copies from or to pageable memory). Events,
with which the scheduler takes a result over, are not among them.
"""

import functools
import json
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

SKIP = 8
"""Steps before counting begins."""
STEPS = 16
MARK = "SYNCS "


def install() -> None:
    """Wrap the worker; after STEPS counted decode steps one line, MARK and JSON of the places and their counts, goes to the log."""
    import torch
    from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPWorkerV2

    original = FrozenKVMTPWorkerV2.forward_batch_generation
    places: Counter[str] = Counter()
    seen = 0

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "called a synchronizing" in str(message):  # not the notice that the mode is a prototype
            places[_place()] += 1

    @functools.wraps(original)
    def counted(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle():
            return original(worker, batch, *args, **kwargs)
        seen += 1
        if not SKIP < seen <= SKIP + STEPS:
            return original(worker, batch, *args, **kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = original(worker, batch, *args, **kwargs)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        if seen == SKIP + STEPS:
            print(MARK + json.dumps({"steps": STEPS, "places": dict(places)}), flush=True)
        return result

    FrozenKVMTPWorkerV2.forward_batch_generation = counted


def _place() -> str:
    """File and line of the innermost frame that is not PyTorch's or this file's."""
    for frame in reversed(traceback.extract_stack()):
        if "/torch/" not in frame.filename and frame.filename != __file__ and not frame.filename.endswith("warnings.py"):
            return f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
    return "?"
