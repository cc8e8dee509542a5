"""The position of the draft's query, by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.speculative import workers


def worker(multimodal: bool, topk: int = 1) -> Any:
    from sglang.srt.models.gemma4_mm import Gemma4ForConditionalGeneration

    model = object.__new__(Gemma4ForConditionalGeneration) if multimodal else SimpleNamespace()
    return SimpleNamespace(topk=topk, target_worker=SimpleNamespace(model_runner=SimpleNamespace(model=model)))


@pytest.mark.parametrize(("multimodal", "expected"), [(False, [3, 9]), (True, [4, 10])])
def test_one_past_the_last_key(multimodal: bool, expected: list[int]) -> None:
    """Three committed keys stand at 0 to 2, or under the multimodal target at 1 to 3."""
    batch = SimpleNamespace(seq_lens=torch.tensor([3, 9], dtype=torch.int32), positions=torch.zeros(2, dtype=torch.int64))
    buffer = batch.positions
    workers.set_positions(worker(multimodal), batch)
    assert batch.positions is buffer, "a captured graph reads this buffer"
    assert buffer.tolist() == workers.position_for_batch(worker(multimodal), batch).tolist() == expected


def test_every_row_of_a_wide_draft() -> None:
    batch = SimpleNamespace(seq_lens=torch.tensor([3, 9]), positions=torch.zeros(4, dtype=torch.int64))
    workers.set_positions(worker(False, topk=2), batch)
    assert batch.positions.tolist() == [3, 3, 9, 9]
    batch.positions = None
    workers.set_positions(worker(False, topk=2), batch)
    assert batch.positions.tolist() == [3, 9]
