"""The launch that derives a step's attention metadata, interpreted, against SGLang's own preparation of the same backend."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_gemma4.attention import step_metadata
from sglang_gemma4.attention.triton_window import Gemma4TritonAttnBackend
from sglang_gemma4.kernels.attention import step_metadata as op

TOKENS, ROWS = 2100, 16
"""The request table: columns of more than four blocks of a gather."""
TABLES = ("kv_indptr", "cuda_graph_kv_indices", "qo_indptr")
SLIDING = ("window_kv_indptr", "cuda_graph_window_kv_indices", "cuda_graph_window_kv_offsets")


class Pool(SWAKVPool):  # type: ignore[misc]
    """A sliding pool that is only its map."""

    def __init__(self, mapping: torch.Tensor) -> None:
        self.full_to_swa_index_mapping = mapping


def backend(kind: type, window: int | None, mapped: bool, most: int, device: str = "cpu") -> Any:
    """A backend with what its metadata need; slots are a permutation, some of nobody, and every buffer starts with rubbish."""
    torch.manual_seed(0)
    made: Any = object.__new__(kind)
    slots = max(40_000, ROWS * TOKENS)
    table = torch.randperm(slots)[: ROWS * TOKENS].reshape(ROWS, TOKENS).to(torch.int32)
    table[min(3, ROWS - 1), ::7] = -1
    table = table.to(device)
    pool = Pool(torch.randperm(slots).to(device)) if mapped else SimpleNamespace()
    translator: Any = object.__new__(KVIndexTranslator)
    translator.__dict__.update(req_to_token=table, page_size=1, is_translating=False, _spaces={})
    made.__dict__.update(
        sliding_window_size=window, dcp_size=1, device=device, kv_index_translator=translator, token_to_kv_pool=pool,
        use_sliding_window_kv_pool=mapped, max_context_len=TOKENS, target_verify_num_tokens_per_req=4, _verify_mask=None,
        mask_indptr=torch.zeros(most + 1, dtype=torch.int64, device=device), decode_attention_fwd=None,
        get_num_kv_splits=lambda *_: None, cuda_graph_uneven_batch=None,
        cuda_graph_num_kv_splits=torch.zeros(most), cuda_graph_window_num_kv_splits=torch.zeros(most),
        cuda_graph_swa_out_cache_loc=torch.full((most * 4,), 7, device=device), dllm_attention=None,
    )  # fmt: skip
    for name in (*TABLES, *(SLIDING if window else ())):
        size = most if name.endswith("offsets") else most + 1 if "indptr" in name else most * TOKENS
        kept = torch.int64 if name.endswith("indices") or name == "qo_indptr" else torch.int32
        made.__dict__[name] = torch.randint(0, 1000, (size,), dtype=kept).to(device)
        if "indptr" in name:
            made.__dict__[name][0] = 0
    if window is None:
        made.window_kv_indptr = None
    return made


def same_tables(expected: Any, found: Any, window: int | None) -> None:
    for name in (*TABLES, *(SLIDING if window else ())):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


LENGTHS = {
    "one": [700],
    "longer than a block": [1, 513, 2100, 512, 1025],
    "padded": [30, 1, 1, 1],
    "at the window": [63, 64, 65, 66, 1024],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(("window", "mapped"), [(64, True), (64, False), (1023, True), (None, False)])
@pytest.mark.parametrize("integers", [torch.int64, torch.int32])
def test_a_verify_step_s_tables(lengths: list[int], window: int | None, mapped: bool, integers: torch.dtype) -> None:
    expected = backend(TritonAttnBackend, window, mapped, 8)
    found = copy.deepcopy(expected)
    rows, many = torch.tensor([3, 1, 9, 0, 5][: len(lengths)]), torch.tensor(lengths, dtype=integers)
    chain = step_metadata.without_mask(expected, SimpleNamespace(num_tokens_per_req=4))
    expected._update_target_verify_buffers(None, len(lengths), many, chain, rows)
    step_metadata.fill(found, len(lengths), many, rows, 4)
    same_tables(expected, found, window)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(("window", "mapped"), [(64, True), (64, False), (None, False)])
@pytest.mark.parametrize("kind", [TritonAttnBackend, Gemma4TritonAttnBackend])
def test_a_decode_step_s_tables(lengths: list[int], window: int | None, mapped: bool, kind: type) -> None:
    """By way of the backend's own method, since the package's counts a decode step's query among a window's keys."""
    expected = backend(kind, window, mapped, 8)
    found = copy.deepcopy(expected)
    rows, many = torch.tensor([3, 1, 9, 0, 5][: len(lengths)]), torch.tensor(lengths)
    stock = expected._update_decode_kv_buffers(None, len(lengths), many, rows)
    original = TritonAttnBackend._update_decode_kv_buffers
    TritonAttnBackend._update_decode_kv_buffers = lambda self, _plan, bs, some, where: step_metadata.fill_decode(self, bs, some, where)
    try:
        ours = found._update_decode_kv_buffers(None, len(lengths), many, rows)
    finally:
        TritonAttnBackend._update_decode_kv_buffers = original
    same_tables(expected, found, window)
    assert [None if value is None else value.tolist() for value in ours] == [None if value is None else value.tolist() for value in stock]


def step_of(lengths: torch.Tensor, rows: torch.Tensor, written: torch.Tensor) -> Any:
    """A verify step of four tokens a request, over the tensors of a graph's runner."""
    spec = SimpleNamespace(custom_mask=None, num_tokens_per_req=4)
    return SimpleNamespace(
        batch_size=len(lengths), forward_mode=ForwardMode.TARGET_VERIFY, seq_lens=lengths, req_pool_indices=rows, spec_info=spec,
        out_cache_loc=written, kv_loc_plan=None,
    )  # fmt: skip


def test_what_a_graph_records_writes_sliding_slots_too() -> None:
    """Stock's preparation with the runner's padded slots, row by row; a padded row writes to slot 0, which is nobody's."""
    made = backend(TritonAttnBackend, 64, True, 8)
    calls = []
    made._apply_cuda_graph_metadata = lambda **given: calls.append(given)
    written = torch.tensor([5, 900, 31_000, 4, 0, 0, 0, 0])
    step_metadata.record(made, step_of(torch.tensor([70, 1]), torch.tensor([2, 0]), written))
    assert [given["bs"] for given in calls] == [2]
    mapping = made.token_to_kv_pool.full_to_swa_index_mapping
    assert made.cuda_graph_swa_out_cache_loc[:8].tolist() == mapping[written].tolist()
    assert set(made.cuda_graph_swa_out_cache_loc[8:].tolist()) == {7}, "no graph of this size reads them"


def test_rows_beyond_the_batch_are_left() -> None:
    made = backend(TritonAttnBackend, 64, True, 8)
    before = made.kv_indptr.clone()
    step_metadata.fill(made, 2, torch.tensor([5, 6, 7]), torch.tensor([1, 2, 3]), 4)
    assert made.kv_indptr.tolist() == [0, 5, 11, *before[3:].tolist()]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lengths": torch.zeros(0, dtype=torch.int64)}, "0 lengths, 2 rows"),
        ({"rows": torch.zeros(1, dtype=torch.int64)}, "2 lengths, 1 rows"),
        ({"table": torch.zeros(8, 4, dtype=torch.int32).T}, r"strides \(1, 4\)"),
        ({"full": op.Rail(torch.zeros(2, dtype=torch.int32), torch.zeros(8, dtype=torch.int64))}, r"2 requests need 3 starts; .* \[2\]"),
        ({"query_indptr": torch.zeros(2)}, r"there are \[3, 2\]"),
        ({"window": 0}, "a window of 0 tokens"),
        ({"first": torch.zeros(1, dtype=torch.int32)}, "1 first tokens for 2 requests"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], said: str) -> None:
    rail = op.Rail(torch.zeros(3, dtype=torch.int32), torch.zeros(8, dtype=torch.int64))
    given: dict[str, Any] = {
        "lengths": torch.ones(2, dtype=torch.int64), "rows": torch.zeros(2, dtype=torch.int64),
        "table": torch.zeros(4, 8, dtype=torch.int32), "full": rail,
    }  # fmt: skip
    if set(change) & {"window", "first"}:
        given["sliding"] = op.Sliding(rail, **{"window": 4, **change})
    else:
        given |= change
    with pytest.raises(ValueError, match=said):
        op.step_metadata(**given)
