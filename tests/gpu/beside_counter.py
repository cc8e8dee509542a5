"""Joined forwards of an engine in its log: ``TEST_SABOTAGE=tests.gpu.beside_counter:install`` in a case's environment.

Each gives a line ``BESIDE {"rows": [prompt rows, running rows], "host_ms": …, "waits": {place: times}}``: the host's time from metadata to
logits, and where it waited for the device in between (PyTorch's sync debug mode).
"""

import importlib
import json
import time
import warnings
from collections import Counter
from typing import Any


def install() -> None:
    """Wrap the joined forward."""
    import torch

    from tests.gpu.sync_counter import _place

    joined_forward: Any = importlib.import_module("sglang_gemma4.models.schedule.joined_forward")
    original = joined_forward.forward

    def counted(runner: Any, prefill: Any, running: Any, *args: Any) -> Any:
        places: Counter[str] = Counter()

        def note(message: Any, *_: Any, **__: Any) -> None:
            if "called a synchronizing" in str(message):
                places[_place()] += 1

        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note
            torch.cuda.set_sync_debug_mode("warn")
            try:
                outputs = original(runner, prefill, running, *args)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        took = 1000 * (time.perf_counter() - began)
        rows = [batch.input_ids.shape[0] for batch in (prefill, running)]
        print("BESIDE", json.dumps({"rows": rows, "host_ms": round(took, 2), "waits": dict(places)}), flush=True)
        return outputs

    joined_forward.forward = counted
