"""Layouts of the transfer plan over real memory: prepared runs and joined stretches copy the same bytes, and what cannot be is named."""

import ctypes
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sglang_gemma4.disaggregation import peers
from sglang_gemma4.disaggregation.layout import Buffers, Layout, Link, lay_out
from sglang_gemma4.disaggregation.plan import PlanError, held, paired

HEAD, SLOTS = 6, 40
SIZES = (HEAD, 2, HEAD, 2)
"""Bytes of a head of one token in each buffer: K, its scales, V, its scales."""
ENTRIES = len(SIZES)


def _pool(heads: int, seed: int) -> list[Any]:
    """Buffers ``[slots, heads, bytes of a head]`` with noise."""
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, (SLOTS, heads, size), dtype=np.uint8) for size in SIZES]


def _buffers(pool: list[Any], page_size: int) -> Buffers:
    items = [each[0].nbytes * page_size for each in pool]
    return Buffers([each.ctypes.data for each in pool], items, [each.nbytes for each in pool])


def _by_runs(layout: Layout, source: list[int], target: list[int], pages: int) -> None:
    """What a library with prepared pieces does."""
    here, there = layout.runs(pages, 0, target=False), layout.runs(pages, 0, target=True)
    for ours, theirs in zip(layout.select(source, pages), layout.select(target, pages), strict=True):
        count = pages * layout.per_page
        run, other = here[ours // count], there[theirs // count]
        ctypes.memmove(other[0] + int(theirs % count) * other[3], run[0] + int(ours % count) * run[3], run[1])


def _by_blocks(layout: Layout, source: list[int], target: list[int], _pages: int) -> None:
    for here, there, lengths in layout.blocks(source, target):
        for ours, theirs, length in zip(here.tolist(), there.tolist(), lengths.tolist(), strict=True):
            ctypes.memmove(theirs, ours, length)


@pytest.mark.parametrize("copy", [_by_runs, _by_blocks])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("heads", [1, 2, 8])
def test_bytes(copy: Any, page_size: int, heads: int) -> None:
    source_pages, target_pages = [3, 4, 5, 1], [2, 3, 9, 7]
    for prefill, decode in itertools.permutations((1, 2, 4, 8), 2):
        whole = _pool(heads, 5)
        for target in range(decode):
            there = held(heads, decode, target)
            received = _pool(len(there), 100 + target)
            expected = [each.copy() for each in received]
            for source in paired(prefill, decode, target):
                here = held(heads, prefill, source)
                rank = [np.ascontiguousarray(each[:, here.start : here.stop]) for each in whole]
                link = Link(prefill, decode, source, target)
                layout = lay_out("full", len(here), page_size, link, _buffers(rank, page_size), _buffers(received, page_size))
                copy(layout, source_pages, target_pages, SLOTS // page_size)
            for each, values in zip(expected, whole, strict=True):
                for ours, theirs in zip(source_pages, target_pages, strict=True):
                    slots = slice(theirs * page_size, (theirs + 1) * page_size)
                    each[slots] = values[ours * page_size : (ours + 1) * page_size, there.start : there.stop]
            assert all(np.array_equal(each, other) for each, other in zip(received, expected, strict=True)), (prefill, decode, target)


def test_neighbouring_pages_are_one_stretch() -> None:
    pool, other = _pool(1, 0), _pool(1, 1)
    layout = lay_out("full", 1, 4, Link(1, 2, 0, 1), _buffers(pool, 4), _buffers(other, 4))
    assert layout.per_page == 1, "both sides hold the same head: a page is one piece"
    (_, _, lengths), *_ = layout.blocks([1, 2, 3, 7], [4, 5, 6, 7])
    assert lengths.tolist() == [3 * 4 * HEAD, 4 * HEAD]
    assert layout.blocks([], []) == []


def test_what_does_not_fit_is_named() -> None:
    pool, link = _pool(2, 0), Link(1, 2, 0, 0)
    ours = _buffers(pool, 4)
    with pytest.raises(PlanError, match="the prefill server has 4 KV buffers, the decode server 2"):
        lay_out("full", 2, 4, link, ours, Buffers(ours.addresses[:2], ours.page_bytes[:2]))
    with pytest.raises(PlanError, match="does not hold whole heads of 6 bytes at page size 4"):
        lay_out("full", 2, 4, link, ours, Buffers(ours.addresses, [20] * ENTRIES))
    with pytest.raises(PlanError, match="does not hold 5 heads"):
        lay_out("full", 5, 4, link, ours, ours)
    with pytest.raises(PlanError, match="no model has both"):
        lay_out("full", 2, 4, link, ours, ours)
    with pytest.raises(PlanError, match="not connected"):
        lay_out("full", 1, 4, Link(2, 1, 0, 0), _buffers(_pool(1, 0), 4), ours) and lay_out(
            "full", 2, 4, Link(2, 4, 0, 3), ours, _buffers(_pool(1, 0), 4)
        )
    with pytest.raises(PlanError, match="Use a larger --page-size"):
        lay_out("full", 2, 4, link, ours, _buffers(_pool(1, 0), 4)).runs(2**29, 0, target=False)


def _manager(**other: Any) -> Any:
    given = {"pp_size": 1, "attn_cp_size": 1, "dcp_size": 1, "enable_staging": False, "num_draft_entries": 0, "swa_kv_cache_layout": "nhd"}
    given |= other
    arguments = SimpleNamespace(num_draft_entries=given.pop("num_draft_entries"), swa_kv_cache_layout=given.pop("swa_kv_cache_layout"))
    return SimpleNamespace(kv_args=arguments, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pp_size": 2}, "--pp-size 2 with different"),
        ({"dcp_size": 2}, "context parallelism"),
        ({"enable_staging": True}, "SGLANG_DISAGG_STAGING_BUFFER=1"),
        ({"num_draft_entries": 4}, "a draft with KV of its own .4 buffers"),
        ({"swa_kv_cache_layout": "hnd"}, "KV pages of layout hnd"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        peers._refuse(_manager(**given))
    peers._refuse(_manager())


def test_sliding_pages_are_cut_at_their_old_end() -> None:
    assert peers.cut_sliding(["mamba", "swa"], [[1], [2, 3, 4]], [[1], [9, 8]]) == [[1], [3, 4]]
    assert peers.cut_sliding(["swa"], [None], [[9]]) == [None]
    with pytest.raises(PlanError, match="asks for 2 pages, the prefill server has 1"):
        peers.cut_sliding(["swa"], [[1]], [[9, 8]])


def test_a_server_that_does_not_fit_fails_its_requests_alone() -> None:
    told: dict[int, str] = {}
    manager = SimpleNamespace(record_failure=told.__setitem__)

    def request(room: int) -> Any:
        return SimpleNamespace(kv_receiver=SimpleNamespace(kv_mgr=manager, bootstrap_room=room, abort=lambda: None))

    def original(_queue: Any, by_address: dict[str, Any]) -> Any:
        if "bad" in by_address:
            raise RuntimeError("Page size mismatch: 1 and 16")
        return by_address, []

    good = request(1)
    assert peers.refuse_servers(original, None, {"bad": [request(2)], "good": [good]}) == ({"good": [good]}, [])
    assert told == {2: "prefill server bad refused: Page size mismatch: 1 and 16"}
