"""Rows of two kinds: each part gets its own, and nothing goes out of turn."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_gemma4 import switches
from sglang_gemma4.attention.two_kinds import Part, TwoKinds
from sglang_gemma4.speculative import prefill_beside


class Scaling:
    """Attention that multiplies the queries."""

    def __init__(self, factor: float) -> None:
        self.factor = self.token_to_kv_pool = factor
        self.seen: list[Any] = []
        self.forward_metadata = SimpleNamespace(swa_out_cache_loc=torch.tensor([int(factor)]))

    def forward(self, q: torch.Tensor, k: Any, v: Any, _layer: Any, batch: Any, save: bool) -> torch.Tensor:
        self.seen.append((None if k is None else len(k), None if v is None else len(v), batch, save))
        return q * self.factor


def kinds() -> TwoKinds:
    return TwoKinds([Part(3, "chunk", Scaling(2.0)), Part(2, "verify", Scaling(5.0))])


def test_each_part_has_its_rows_batch_and_backend() -> None:
    both, rows = kinds(), torch.ones(5, 2, 4)
    out = both.forward(rows, rows, None, None, "not read", save_kv_cache=False)
    assert out.tolist() == [[2.0] * 8] * 3 + [[5.0] * 8] * 2
    assert [part.backend.seen for part in both.parts] == [[(3, None, "chunk", False)], [(2, None, "verify", False)]]
    assert both.token_to_kv_pool == 2.0, "what both share is asked of the first"
    assert both.sliding_slots is not None
    assert both.sliding_slots.tolist() == [2, 5]


def test_other_numbers_of_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a forward of 3 \+ 2 rows got a tensor of 6"):
        kinds().split(torch.zeros(6, 1))


def test_forwards_out_of_turn_are_refused() -> None:
    pair = prefill_beside.Pair(SimpleNamespace(), lambda _batch: None)
    with pytest.raises(RuntimeError, match="a forward of mode EXTEND came out of turn"):
        pair.forward(None, SimpleNamespace(forward_mode=ForwardMode.EXTEND))
    pair.kept = "output"
    with pytest.raises(RuntimeError, match="a forward of mode DECODE came out of turn"):
        pair.forward(None, SimpleNamespace(forward_mode=ForwardMode.DECODE))
    assert pair.forward(None, SimpleNamespace(forward_mode=ForwardMode.EXTEND)) == "output"
    assert pair.kept is None


def test_most_tokens() -> None:
    assert prefill_beside.most_tokens({}) is None
    assert prefill_beside.most_tokens({switches.BESIDE_TOKENS: " 512 "}) == 512
    for wrong in ("0", "-3", "many"):
        with pytest.raises(switches.SwitchError, match=f"{switches.BESIDE_TOKENS}={wrong} is not a positive number of tokens"):
            prefill_beside.most_tokens({switches.BESIDE_TOKENS: wrong})
