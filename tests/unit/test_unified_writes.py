"""Pages of a unified pool that the forward of a pair writes stay where they are until it is done; SGLang's real allocators on the CPU.

Only the event is a stand-in: on a CPU every forward is done when it returns.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.allocator.unified_hybrid_swa import UnifiedSWAAllocatorBase

from sglang_gemma4.speculative import prefill_beside

STOCK: Callable[..., None] = UnifiedSWAAllocatorBase.set_inflight_forward


class Forward:
    """The event that SGLang records behind a forward."""

    done = False

    def query(self) -> bool:
        return self.done


def pools(page: int) -> Any:
    """The allocator of a model with one full and three sliding layers."""
    from sglang.srt.mem_cache.unified_memory_pool import init_unified_swa_pools

    heads: dict[str, Any] = {"head_num": 1, "head_dim": 8, "v_head_dim": 8, "swa_head_num": 1, "swa_head_dim": 8, "swa_v_head_dim": 8}
    return init_unified_swa_pools(
        device="cpu", kv_cache_dtype=torch.float32, page_size=page, start_layer=0, end_layer=4, swa_attention_layer_ids=[0, 1, 2],
        full_attention_layer_ids=[3], total_bytes=64 * page * 256, enable_memory_saver=False, need_sort=False, lazy_compaction=True,
        **heads,
    ).token_to_kv_pool_allocator  # fmt: skip


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("told", [STOCK, lambda *given: prefill_beside.in_flight(STOCK, *given)], ids=["stock", "pair"])
def test_no_page_is_moved_while_a_pair_writes_it(page: int, told: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt's slots are taken before those of the running requests, which are so the first to be moved into what others freed."""
    allocator = pools(page)
    others, prompt, running = (allocator.alloc(count * page) for count in (4, 3, 2))
    monkeypatch.setattr(prefill_beside, "_open", [prefill_beside.Pair(SimpleNamespace(out_cache_loc=prompt), SimpleNamespace(), print)])
    forward = Forward()
    for slots in (running, prompt):  # in the order in which both batches are run
        allocator.set_latest_forward_done_event(forward)
        told(allocator, forward, slots)
    monkeypatch.setattr(prefill_beside, "_open", [])
    allocator.free(others)
    sides = (allocator.full_attn_allocator, allocator.swa_attn_allocator)

    def places() -> list[list[int]]:
        return [side.translate_kv_loc(slots).tolist() for side in sides for slots in (prompt, running)]

    before = places()
    moved = allocator.flush_opportunistic()
    if told is STOCK:
        assert moved > 0, "told of the prompt's slots alone, SGLang copies pages that the forward is about to write"
        return
    assert (moved, places()) == (0, before)
    forward.done = True
    assert allocator.flush_opportunistic() > 0
    assert places() != before
    assert allocator.verify_byte_accounting() == []


def test_a_batch_of_its_own_is_as_sglang_tells_it() -> None:
    told: list[Any] = []
    for slots in (torch.arange(3), None):
        prefill_beside.in_flight(lambda *given: told.append(given), "allocator", "event", slots)
        assert told[-1] == ("allocator", "event", slots)
