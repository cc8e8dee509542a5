"""Page-table rows: the kernel under Triton's interpreter against its reference, with poisoned outputs and poison around them."""

import importlib
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.models.attention_backends import create_flash_attention, make_room_for_draft_tokens

POISON = -7


@pytest.fixture(scope="module")
def op() -> Iterator[ModuleType]:
    """The kernel's module, interpreted: Triton decides that when a kernel is defined."""
    module = importlib.import_module("sglang_gemma4.kernels.attention.page_rows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield importlib.reload(module)
    importlib.reload(module)


def table(rows: int, width: int, gap: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A table in poisoned memory, ``gap`` columns between rows and a row behind; and all of that memory."""
    memory = torch.full((rows + 1, width + gap), POISON, dtype=torch.int32)
    return memory[:rows, :width], memory


def slots(requests: int, context: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """``req_to_token`` with slots in no order, and a full-to-sliding map that, as SGLang's, has freed (0) and absent (-1) ones."""
    torch.manual_seed(seed)
    req_to_token = torch.randperm(requests * context, dtype=torch.int32).view(requests, context)
    full_to_swa = torch.randperm(requests * context + 1) - 1
    full_to_swa[::5] = 0
    return req_to_token, full_to_swa


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("batch", "width", "page", "context", "gap"),
    [
        (1, 1, 1, 1, 0),
        (3, 4, 16, 88, 0),
        (3, 4, 16, 64, 3),
        (5, 7, 3, 20, 1),
        (2, 257, 1, 300, 0),
        (4, 600, 2, 1201, 5),
        (2, 3, 64, 200, 0),
    ],
)
def test_equals_the_reference_and_stays_within_the_rows(
    op: ModuleType, batch: int, width: int, page: int, context: int, gap: int, index: torch.dtype
) -> None:
    req_to_token, full_to_swa = slots(batch + 2, context)
    requests = torch.randperm(batch + 2)[:batch].to(index)
    full, sliding = width * page, context
    for lengths in (
        [full] * batch,
        [full + 1] * batch,
        [sliding + page] * batch,
        [0] * batch,
        [(n * 7919) % (full + 9) for n in range(batch)],
    ):
        (ours, memory), (ours_swa, memory_swa) = table(batch, width, gap), table(batch, width, 2 * gap)
        seqlens = torch.tensor(lengths, dtype=torch.int32)
        op.page_rows(req_to_token, requests, seqlens, ours, page, swa_page_table=ours_swa, full_to_swa=full_to_swa.to(index))
        assert torch.equal(ours, op.page_rows_reference(req_to_token, requests, seqlens, width, page))
        assert torch.equal(ours_swa, op.page_rows_reference(req_to_token, requests, seqlens, width, page, full_to_swa))
        for block in (memory, memory_swa):
            assert (block[batch:] == POISON).all(), "wrote behind the table"
            assert (block[:, width:] == POISON).all(), "wrote past the width of a row"


def test_by_hand(op: ModuleType) -> None:
    """Two requests of two pages of four; slots 8..11, 20..23 and 4..7, 12..15; the second is one token longer than its row."""
    req_to_token = torch.tensor([[8, 9, 10, 11, 20, 21, 22, 23, 28], [4, 5, 6, 7, 12, 13, 14, 15, 24]], dtype=torch.int32)
    full_to_swa = torch.arange(32) - 4
    (rows, memory), (sliding, _) = table(3, 2), table(3, 2)
    op.page_rows(req_to_token, torch.tensor([1, 0, 0]), torch.tensor([9, 4, 0]), rows, 4, sliding, full_to_swa)
    assert memory.tolist() == [[1, 3], [2, 0], [0, 0], [POISON, POISON]]
    assert sliding.tolist() == [[0, 2], [1, 0], [0, 0]]


def test_without_a_sliding_pool(op: ModuleType) -> None:
    req_to_token, _ = slots(3, 40)
    rows, memory = table(2, 3)
    lengths = torch.tensor([40, 1])
    op.page_rows(req_to_token, torch.tensor([2, 0]), lengths, rows, 16)
    assert torch.equal(rows, op.page_rows_reference(req_to_token, torch.tensor([2, 0]), lengths, 3, 16))
    assert (memory[2] == POISON).all()


def test_every_entry_is_a_page_of_the_pool(op: ModuleType) -> None:
    """Slots that are not mapped or past the map, and lengths far past ``req_to_token``'s last column."""
    req_to_token = torch.tensor([[-5] * 8, [100] * 8], dtype=torch.int32)
    (rows, _), (sliding, _) = table(2, 5), table(2, 5)
    op.page_rows(req_to_token, torch.tensor([0, 1]), torch.tensor([2**31 - 1, 8]), rows, 4, sliding, torch.tensor([-5, 9]))
    assert rows.tolist() == [[0] * 5, [25, 25, 0, 0, 0]]
    assert sliding.tolist() == [[0] * 5, [2, 2, 0, 0, 0]]


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_an_empty_table(op: ModuleType, shape: tuple[int, int]) -> None:
    req_to_token, _ = slots(3, 8)
    op.page_rows(req_to_token, torch.arange(3), torch.full((3,), 8), torch.empty(shape, dtype=torch.int32), 4)


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "req_to_token": lambda: torch.zeros(2, 8, dtype=torch.int32),
    "req_pool_indices": lambda: torch.arange(2),
    "cache_seqlens": lambda: torch.ones(2, dtype=torch.int32),
    "page_table": lambda: torch.zeros(2, 3, dtype=torch.int32),
    "page_size": lambda: 4,
}
MAP = torch.arange(8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"page_size": 0}, "page_size must be at least 1, it is 0"),
        ({"full_to_swa": MAP}, "go together"),
        ({"swa_page_table": torch.zeros(2, 3, dtype=torch.int32)}, "go together"),
        ({"swa_page_table": torch.zeros(2, 4, dtype=torch.int32), "full_to_swa": MAP}, r"\(2, 3\) and \(2, 4\)"),
        ({"cache_seqlens": torch.ones(1)}, "2 rows need as many requests and lengths, there are 2 and 1"),
        ({"req_pool_indices": torch.ones(1)}, "there are 1 and 2"),
        ({"page_table": torch.zeros(2, 3)}, "page_table must be int32, it is torch.float32"),
        ({"page_table": torch.zeros(3, 2, dtype=torch.int32).T}, "page_table must have adjacent elements"),
        ({"cache_seqlens": torch.ones(4, dtype=torch.int32)[::2]}, "cache_seqlens must have adjacent elements"),
    ],
)
def test_what_does_not_fit_is_refused(op: ModuleType, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op.page_rows(**{name: make() for name, make in ARGUMENTS.items()} | wrong)


@pytest.mark.parametrize(
    ("stock", "columns", "page", "expected"), [(4, 64 + 24, 16, 6), (4, 64 + 8, 64, 4), (1, 130, 64, 3), (9, 130, 64, 9)]
)
def test_rows_hold_what_a_request_may_have(stock: int, columns: int, page: int, expected: int) -> None:
    backend = SimpleNamespace(max_num_pages=stock, req_to_token=torch.zeros(2, columns), page_size=page)
    make_room_for_draft_tokens(None, backend)
    assert backend.max_num_pages == expected


def test_flash_attention_4_has_the_same_room(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers.attention import attention_registry

    stock = SimpleNamespace(max_context_len=64, max_num_pages=4, req_to_token=torch.zeros(2, 88), page_size=16)
    monkeypatch.setattr(attention_registry, "create_flashattention_v4_backend", lambda _runner: stock)
    backend = create_flash_attention(SimpleNamespace())
    assert (backend.max_context_len, backend.max_num_pages) == (88, 6)
