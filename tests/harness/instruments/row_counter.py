"""Say how many rows each layer of a prefill sees (``TEST_INSTRUMENTS=row_counter:install``), and read that back from a log."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def install() -> None:
    """Lines on the log, in the order of what happens.

    ``FORWARD EXTEND``: the model runner gets a batch. ``PREPARED DECODE``: an attention backend prepares for it. ``SAW 5 2 DECODE``:
    layer 5 saw two rows in a decode step, inside a prefill; what is replayed from a graph says nothing. ``MIXED 3 beside a middle
    chunk``: the scheduler put three decode rows into a prefill that ends no prompt.
    """
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.model_executor.runner_utils.prefill_graph import is_in_prefill_graph_scope
    from sglang.srt.models.gemma4_causal import Gemma4DecoderLayer

    from sglang_gemma4.cpu.attention_backend import Gemma4CpuAttention

    def before(owner: Any, name: str, tell: Callable[..., str]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def told(self: Any, *args: Any, **kwargs: Any) -> Any:
            if line := tell(self, *args, **kwargs):
                print(line, flush=True)
            return original(self, *args, **kwargs)

        setattr(owner, name, told)

    prefilling = False

    def saw(layer: Any, positions: Any, hidden_states: Any, *_: Any, forward_batch: Any, **__: Any) -> str:
        nonlocal prefilling
        mode = forward_batch.forward_mode
        if layer.layer_id == 0:
            prefilling = mode.is_extend_without_speculative()
        listed = prefilling or is_in_prefill_graph_scope()
        return f"SAW {layer.layer_id} {hidden_states.shape[0]} {mode.name}" if listed else ""

    def mixed(batch: Any, running: Any) -> str:
        return f"MIXED {running.batch_size()} beside a {'last' if batch.contains_last_prefill_chunk else 'middle'} chunk"

    before(Gemma4DecoderLayer, "forward", saw)
    before(ScheduleBatch, "mix_with_running", mixed)
    before(ModelRunner, "forward", lambda self, batch, *_, **__: f"FORWARD {batch.forward_mode.name}")
    for backend in (Gemma4CpuAttention, TritonAttnBackend):
        before(backend, "init_forward_metadata", lambda self, batch: f"PREPARED {batch.forward_mode.name}")


def prefills(log: str) -> list[list[tuple[int, str]]]:
    """Of each prefill in the log, the rows and the mode of each layer that ran."""
    found: list[list[tuple[int, str]]] = []
    for layer, rows, mode in re.findall(r"^SAW (\d+) (\d+) (\w+)$", log, re.MULTILINE):
        if layer == "0":
            found.append([])
        assert int(layer) == len(found[-1])
        found[-1].append((int(rows), mode))
    return found


@dataclass
class Forward:
    """What happened in one call of a model runner."""

    mode: str
    replayed: bool
    prepared: list[str]
    """Modes that attention was prepared for."""
    layers: list[tuple[int, int, str]]
    """Number, rows and mode of each layer that said something."""


def forwards(log: str) -> list[Forward]:
    """Everything after the start."""
    parts = re.split(r"^FORWARD (\w+)$", log, flags=re.MULTILINE)[1:]
    return [
        Forward(
            mode,
            replayed=re.search(r"^REPLAYED ", text, re.MULTILINE) is not None,
            prepared=re.findall(r"^PREPARED (\w+)$", text, re.MULTILINE),
            layers=[(int(layer), int(rows), seen) for layer, rows, seen in re.findall(r"^SAW (\d+) (\d+) (\w+)$", text, re.MULTILINE)],
        )
        for mode, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def prefill_forwards(log: str) -> list[Forward]:
    """Those that prefill."""
    return [forward for forward in forwards(log) if forward.mode in ("EXTEND", "MIXED")]
