"""Say how many rows each layer of a prefill sees (``TEST_SABOTAGE=row_counter:install``), and read that back from a log."""

import functools
import re
from typing import Any


def install() -> None:
    """One line a layer on the log: ``SAW 5 2 DECODE``, layer 5 saw two rows in a decode step, inside a prefill."""
    from sglang.srt.models.gemma4_causal import Gemma4DecoderLayer

    original: Any = Gemma4DecoderLayer.forward
    prefilling = False

    @functools.wraps(original)
    def counted(self: Any, positions: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal prefilling
        mode = kwargs["forward_batch"].forward_mode
        if self.layer_id == 0:
            prefilling = mode.is_extend_without_speculative()
        if prefilling:
            print(f"SAW {self.layer_id} {hidden_states.shape[0]} {mode.name}", flush=True)
        return original(self, positions, hidden_states, *args, **kwargs)

    Gemma4DecoderLayer.forward = counted


def prefills(log: str) -> list[list[tuple[int, str]]]:
    """Of each prefill in the log, the rows and the mode of each layer that ran."""
    found: list[list[tuple[int, str]]] = []
    for layer, rows, mode in re.findall(r"^SAW (\d+) (\d+) (\w+)$", log, re.MULTILINE):
        if layer == "0":
            found.append([])
        assert int(layer) == len(found[-1])
        found[-1].append((int(rows), mode))
    return found
