"""Tables from SGLang's batches, pools and backends: page tables, lists, windows, pools that are swapped in. Backends are stand-ins
with the attributes that the readers take; real ones run in tests/engine/test_traps.py."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4 import patching
from sglang_gemma4.diagnostics import bounds, kv_tables, traps
from sglang_gemma4.diagnostics.kv_tables import Forward, Pools
from sglang_gemma4.patching.switches import DEBUG_DIR

PAGE, FULL, SLIDING, DISTANCE = 4, 64, 32, 7
LENGTHS = (18, 11)


@pytest.fixture(autouse=True)
def dumps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(DEBUG_DIR, str(tmp_path))
    return tmp_path


def mode(name: str) -> Any:
    return SimpleNamespace(
        name=name,
        is_idle=lambda: name == "IDLE",
        is_decode=lambda: name == "DECODE",
        is_target_verify=lambda: name == "TARGET_VERIFY",
    )


def swa_pool(page: int = PAGE) -> Any:
    layers = {0: (0, True), 1: (1, True), 2: (0, False)}
    mapping = torch.zeros(FULL + page + 1, dtype=torch.int64)
    mapping[-1] = -1
    sub_pools = {"full_kv_pool": SimpleNamespace(size=FULL), "swa_kv_pool": SimpleNamespace(size=SLIDING)}
    return SimpleNamespace(page_size=page, layers_mapping=layers, full_to_swa_index_mapping=mapping, **sub_pools)


def plain_pool(size: int = 64) -> Any:
    return SimpleNamespace(size=size, page_size=PAGE)


class Paged:
    """Pages, filled inside the graph; the stand-in builds them as SGLang's kernel does."""

    kv_index_translator: Any = None
    attn_backend_list = None

    def __init__(self, pool: Any, req_to_token: torch.Tensor) -> None:
        self.page_size, self.token_to_kv_pool = PAGE, pool
        self.req_to_token_pool = SimpleNamespace(req_to_token=req_to_token)
        self.forward_metadata: Any = None
        self.poison: tuple[str, int, int, int] | None = None
        self.built = 0

    def init_forward_metadata(self, batch: Any) -> None:
        self.built += 1
        starts = self.req_to_token_pool.req_to_token[batch.req_pool_indices][:, ::PAGE]
        mapping = self.token_to_kv_pool.full_to_swa_index_mapping
        self.forward_metadata = SimpleNamespace(
            cache_seqlens_int32=batch.seq_lens.int(),
            page_table=(starts // PAGE).int(),
            swa_page_table=(mapping[starts] // PAGE).int(),
            swa_out_cache_loc=mapping[batch.out_cache_loc],
        )
        if self.poison:
            name, row, entry, value = self.poison
            getattr(self.forward_metadata, name)[row, entry] = value

    def init_forward_metadata_out_graph(self, batch: Any, in_capture: bool = False) -> None:
        pass

    def init_forward_metadata_in_graph(self, batch: Any) -> None:
        self.init_forward_metadata(batch)


class TRTLLMHAAttnBackend(Paged):
    """Known by its name."""


class FlashAttentionBackend(Paged):
    """Known by its name."""


class AiterAttnBackend(Paged):
    """Not known."""


def decode_batch() -> tuple[Any, torch.Tensor, Any]:
    """Two requests in rows 3 and 1, page-aligned slots in both pools; keys before the window have no sliding slot."""
    pool, table = swa_pool(), torch.zeros(5, 24, dtype=torch.int32)
    free, sliding = PAGE, PAGE
    for row, length in zip((3, 1), LENGTHS, strict=True):
        pages = -(-length // PAGE) * PAGE
        slots = torch.arange(free, free + pages)
        table[row, :pages] = slots.int()
        free += pages
        first = (length - 1 - DISTANCE) // PAGE * PAGE
        pool.full_to_swa_index_mapping[slots[first:]] = torch.arange(sliding, sliding + pages - first)
        sliding += pages - first
    newest = torch.stack([table[3, LENGTHS[0] - 1], table[1, LENGTHS[1] - 1]]).long()
    batch = SimpleNamespace(
        batch_size=2,
        forward_mode=mode("DECODE"),
        req_pool_indices=torch.tensor([3, 1]),
        seq_lens=torch.tensor(LENGTHS),
        out_cache_loc=newest,
        spec_info=None,
        rids=["one", "two"],
    )
    return batch, table, pool


def armed(draft: bool = False, kind: type = TRTLLMHAAttnBackend) -> tuple[Any, Any, torch.Tensor, Any]:
    batch, table, pool = decode_batch()
    backend = kind(pool, table)
    traps.arm(backend, "bounds_traps", DISTANCE, draft)
    return backend, batch, table, pool


@pytest.mark.parametrize("kind", [TRTLLMHAAttnBackend, FlashAttentionBackend])
def test_sound_pages_pass_eager_and_before_replay(kind: type) -> None:
    backend, batch, _, _ = armed(kind=kind)
    backend.init_forward_metadata(batch)
    assert backend.built == 1
    backend.init_forward_metadata_out_graph(batch)
    assert backend.built == 2, "tables that the graph fills are filled for the check"
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    assert backend.built == 2, "at capture there is nothing real"


@pytest.mark.parametrize("stage", ["init_forward_metadata", "init_forward_metadata_out_graph"])
@pytest.mark.parametrize(
    ("poison", "says"),
    [
        (
            ("page_table", 1, 2, 17),
            r"full layers \(2\): entry 2 in row 1 \(request two, pool row 1\) of page_table is page 17; .* 1..16 ",
        ),
        (("page_table", 0, 0, 0), r"full layers \(2\): entry 0 in row 0 \(request one, pool row 3\) of page_table is padding page 0"),
        (
            ("swa_page_table", 0, 4, 9),
            r"sliding layers \(0, 1\): entry 4 in row 0 .* of swa_page_table is page 9; .* 1..8 ",
        ),
        (("swa_page_table", 1, 1, -1), r"entry 1 in row 1 .* of swa_page_table is page -1"),
    ],
)
def test_a_wrong_page_is_trapped(poison: Any, says: str, stage: str) -> None:
    backend, batch, _, _ = armed()
    backend.poison = poison
    with pytest.raises(traps.KVBoundsError, match=says):
        getattr(backend, stage)(batch)


def test_pages_before_the_window_may_be_freed() -> None:
    backend, batch, _, pool = armed()
    assert int(pool.full_to_swa_index_mapping[PAGE]) == 0, "the first page of row 0 is before its window"
    backend.init_forward_metadata(batch)


def test_a_table_that_is_too_narrow_is_trapped_before_its_builder_runs() -> None:
    backend, batch, _, _ = armed()
    batch.seq_lens = torch.tensor([18, 25])
    with pytest.raises(traps.KVBoundsError, match=r"row 1 .* of req_to_token is read for 25 slots, and the row has 24"):
        backend.init_forward_metadata(batch)
    assert backend.built == 0


def test_a_request_that_does_not_exist_is_trapped_before_it_is_followed() -> None:
    backend, batch, _, _ = armed()
    batch.req_pool_indices = torch.tensor([3, 5])
    with pytest.raises(traps.KVBoundsError, match=r"row 1 .* has row 5 of req_to_token, which has rows 0\.\.4"):
        backend.init_forward_metadata(batch)
    assert backend.built == 0


def test_writes_are_checked() -> None:
    backend, batch, _, _ = armed()
    batch.out_cache_loc = batch.out_cache_loc.clone()
    batch.out_cache_loc[1] = FULL + PAGE
    with pytest.raises(traps.KVBoundsError, match=r"entry 0 in row 1 .* of out_cache_loc is slot 68; the buffer's are 4\.\.67"):
        backend.init_forward_metadata(batch)


def test_a_draft_is_checked_against_the_pool_it_reads() -> None:
    """The frozen view swaps the target's pool in; with the draft's own 64 slots still in place, reads would leave it."""
    backend, batch, _, _pool = armed(draft=True)
    backend.init_forward_metadata(batch)
    backend.token_to_kv_pool = plain_pool(size=16)
    with pytest.raises(traps.KVBoundsError, match=r"of req_to_token is slot 20; the buffer's are 4\.\.19"):
        backend.init_forward_metadata(batch)


def test_sliding_layers_without_a_table_follow_the_full_one() -> None:
    """fa4's draft: a flag cached from its own pool, so that sliding layers read full pages in the sliding buffer."""
    batch, table, pool = decode_batch()
    backend = FlashAttentionBackend(pool, table)
    backend.init_forward_metadata(batch)
    backend.forward_metadata.swa_page_table = backend.forward_metadata.swa_out_cache_loc = None
    forward, pools = Forward.of(batch, backend, DISTANCE, draft=True), Pools.of(pool)
    assert bounds.check(kv_tables.built(backend, forward, pools, replay=False) or []) is None, "in range here: page 8 of 8"
    backend.forward_metadata.page_table[1, 2] = 9  # legal in the full pool, which has 16
    found = bounds.check(kv_tables.built(backend, forward, pools, replay=False) or [])
    assert found is not None
    assert (found.table, found.group, found.index, found.bound) == ("page_table", "sliding", 9, 9)


def test_verify_reads_and_writes_the_draft_tokens() -> None:
    batch, table, pool = decode_batch()
    batch.forward_mode, batch.spec_info = mode("TARGET_VERIFY"), SimpleNamespace(draft_token_num=4)
    forward = Forward.of(batch, TRTLLMHAAttnBackend(pool, table), DISTANCE, draft=False)
    assert forward.key_lens.tolist() == [22, 15]
    assert forward.oldest(forward.key_lens).tolist() == [11, 4]


def test_an_unknown_backend_is_checked_at_the_source_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(patching, "note", lambda patch, message: said.append(f"{patch}: {message}"))
    batch, table, pool = decode_batch()
    backend = AiterAttnBackend(pool, table)
    traps.arm(backend, "bounds_traps", DISTANCE, draft=False)
    assert len(said) == 1
    assert said[0].startswith("bounds_traps: tables that AiterAttnBackend builds are not known here")
    backend.init_forward_metadata(batch)
    table[3, 2] = FULL + PAGE
    with pytest.raises(traps.KVBoundsError, match="of req_to_token is slot 68"):
        backend.init_forward_metadata(batch)


def test_a_unified_pool_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(patching.declare, "note", lambda patch, message: said.append(message))
    _batch, table, pool = decode_batch()
    backend = TRTLLMHAAttnBackend(pool, table)
    backend.kv_index_translator = SimpleNamespace(is_translating=True)
    traps.arm(backend, "bounds_traps", DISTANCE, draft=False)
    assert "init_forward_metadata" not in vars(backend)
    assert len(said) == 1
    assert "unified memory pool" in said[0]


def test_wrappers_are_armed_inside_and_twice_is_once() -> None:
    _batch, table, pool = decode_batch()
    inner: list[Any] = [TRTLLMHAAttnBackend(pool, table), FlashAttentionBackend(pool, table)]
    wrapper = SimpleNamespace(prefill_backend=inner[0], decode_backend=inner[1], attn_backend_list=None)
    for _ in range(2):
        traps.arm(wrapper, "bounds_traps", DISTANCE, draft=False)
    assert not hasattr(wrapper, traps.ARMED)
    for backend in inner:
        assert backend.init_forward_metadata.func.__self__ is getattr(backend, traps.ARMED)
        assert backend.init_forward_metadata.args[0].__func__ is Paged.init_forward_metadata


def test_a_preparation_that_is_being_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays of a captured preparation would not be checked: SGLang is told to prepare without a graph, or it is said."""
    said: list[str] = []
    monkeypatch.setattr(patching, "note", lambda patch, message: said.append(f"{patch}: {message}"))
    backend, batch, table, _ = armed()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    table[3, 2] = FULL + PAGE
    with pytest.raises(RuntimeError, match="cannot be captured in a graph"):
        backend.init_forward_metadata_out_graph(batch)
    backend.init_forward_metadata(batch)
    assert said == ["bounds_traps: TRTLLMHAAttnBackend prepares inside a captured graph, where nothing can be checked"]


def test_idle_batches_pass_through() -> None:
    backend, batch, _, _ = armed()
    batch.forward_mode, batch.batch_size = mode("IDLE"), 0
    backend.init_forward_metadata_out_graph(batch)
    assert backend.built == 0


def test_allocations_of_the_sliding_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traps, "_armed", {"armed"})
    pool = swa_pool()
    pool.full_to_swa_index_mapping[4:12] = torch.arange(8, 16)
    allocator = SimpleNamespace(
        page_size=PAGE, size_full=FULL, size_swa=SLIDING, swa_req_ring=False, full_to_swa_index_mapping=pool.full_to_swa_index_mapping
    )
    traps.check_allocation("another", allocator, torch.tensor([4, 4]), "alloc")
    traps.check_allocation("armed", allocator, torch.arange(4, 12), "alloc_extend")
    traps.check_allocation("armed", allocator, None, "alloc_extend")
    for slots, says in (
        (torch.tensor([4, 68]), r"full layers: token 1 of the allocated slots has slot 68; the buffer's are 4\.\.67 \[alloc_decode on"),
        (torch.tensor([4, 4]), "full layers: the allocator gave slot 4 to two tokens"),
        (torch.tensor([4, 12]), r"sliding layers: token 1 of the allocated slots has padding slot 0; the buffer's are 4\.\.35"),
    ):
        with pytest.raises(traps.KVBoundsError, match=says):
            traps.check_allocation("armed", allocator, slots, "alloc_decode")
    traps.check_allocation("armed", allocator, torch.tensor([12, 4]), "alloc_extend_swa_tail", 1)
    with pytest.raises(traps.KVBoundsError, match="token 0 of the allocated slots has padding slot 0"):
        traps.check_allocation("armed", allocator, torch.tensor([4, 12]), "alloc_extend_swa_tail", 1)
    allocator.swa_req_ring = True
    traps.check_allocation("armed", allocator, torch.tensor([4, 12]), "alloc_decode")
