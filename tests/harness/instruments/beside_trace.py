"""What an engine ran together, in its log: ``TEST_INSTRUMENTS`` names ``watch``, ``overlapped``, ``retracting``,
``failing``, ``timed`` or ``slow``.

Each forward of two batches gives a line ``BESIDE {"prefilled": […], "running": […], "rows": [prompt rows, running rows], "heads": products
with the head's weights}``; the rest is ``mtp_trace``'s.
"""

import functools
import importlib
import json
from collections.abc import Callable
from typing import Any


def watch() -> None:
    """Trace mixed batches, as ``mtp_trace.watch`` does verifies."""
    importlib.import_module("tests.harness.instruments.mtp_trace").watch()
    _trace()


def overlapped() -> None:
    """As :func:`watch`, in an engine that may overlap."""
    importlib.import_module("tests.harness.instruments.loop_modes").overlapping()
    _trace()


def retracting() -> None:
    """As :func:`overlapped`; requests of the running batch are retracted again and again."""
    importlib.import_module("tests.harness.instruments.loop_modes").overlapped()
    _trace()


def failing() -> None:
    """As :func:`overlapped`; the third mixed batch fails in its last layer."""
    overlapped()
    kinds: Any = importlib.import_module("sglang_gemma4.attention.two_kinds").TwoKinds
    original, layers = kinds.forward, {"last": -1, "forwards": 0}

    def forward(self: Any, q: Any, k: Any, v: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        if layer.layer_id == 0:
            layers["forwards"] += 1
        if layers["forwards"] == 3 and layer.layer_id == layers["last"]:
            raise RuntimeError("no kernel image for this shape")
        layers["last"] = max(layers["last"], layer.layer_id)
        return original(self, q, k, v, layer, *args, **kwargs)

    kinds.forward = forward


def timed() -> None:
    """As :func:`watch`; chunk sizes follow the times of an invented GPU: a fixed time for plain steps, and one by
    rows for others."""
    _timed(lambda tokens, _, rows: max(0.016, 1e-4 * rows) if tokens else 0.01)


def slow() -> None:
    """As :func:`timed`, on a GPU whose mixed batches take longer than both steps alternating; a line ``STEP [tokens,
    running]`` for each result."""

    def seconds(tokens: int, running: int, rows: int) -> float:
        print("STEP", json.dumps([tokens, running]), flush=True)
        return 0.03 + 1e-4 * rows if tokens and running else 0.004 + 2e-5 * tokens if tokens else 0.01

    _timed(seconds)


def _timed(seconds: Callable[[int, int, int], float]) -> None:
    watch()
    admission: Any = importlib.import_module("sglang_gemma4.speculative.admission")
    chunks: Any = importlib.import_module("sglang_gemma4.speculative.prompt_chunks")
    clock: Any = importlib.import_module("sglang_gemma4.speculative.step_clock")
    admission.TRIED, arrived, now = (256, 512, 128), chunks.arrived, [0.0]

    def advanced(result: Any) -> None:
        now[0] += seconds(*result.prompt_tokens_beside)
        arrived(result)

    chunks.arrived, chunks.time = advanced, type("Clock", (), {"monotonic": lambda: now[0]})
    # As a card's: each step that counts was marked when it was launched.
    clock._clock = type("Card", (), {"mark": lambda _, stream: "launched", "at": lambda _, mark: now[mark != "launched"]})()


def _trace() -> None:
    joined: Any = importlib.import_module("sglang_gemma4.models.schedule.joined_forward")
    original = joined.forward

    processor: Any = importlib.import_module("sglang.srt.layers.logits_processor").LogitsProcessor
    product, heads = processor._compute_lm_head, [0]

    @functools.wraps(product)  # a hook on it asks for its source
    def counted(*args: Any, **kwargs: Any) -> Any:
        heads[0] += 1
        return product(*args, **kwargs)

    def forward(runner: Any, prefill: Any, running: Any, *args: Any) -> Any:
        rows, before = [batch.input_ids.shape[0] for batch in (prefill, running)], heads[0]
        outputs = original(runner, prefill, running, *args)
        step = {"prefilled": prefill.rids, "running": running.rids, "rows": rows, "heads": heads[0] - before}
        print("BESIDE", json.dumps(step), flush=True)
        return outputs

    processor._compute_lm_head, joined.forward = counted, forward
