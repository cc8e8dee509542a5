"""Which processes capture the short part of a prefill, and which graph a batch takes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

from sglang_gemma4.attention import second_metadata
from sglang_gemma4.attention.triton_window import Gemma4TritonAttnBackend
from sglang_gemma4.models.schedule import short_graphs


def backend(kind: type = Gemma4TritonAttnBackend, **given: Any) -> Any:
    found: Any = object.__new__(kind)
    translator = SimpleNamespace(is_translating=False)
    vars(found).update({"dcp_size": 1, "kv_index_translator": translator, "kv_indptr": torch.zeros(49), **given})
    return found


@pytest.mark.parametrize(
    ("given", "ranks", "said"),
    [
        (backend(), 1, None),
        (backend(TritonAttnBackend), 1, None),
        (backend(), 2, "--tp-size 2"),
        (SimpleNamespace(), 1, "SimpleNamespace is not the triton backend"),
        (backend(dcp_size=2), 1, "--dcp-size above 1"),
        (backend(kv_index_translator=SimpleNamespace(is_translating=True)), 1, "a unified pool"),
    ],
)
def test_who_has_them(given: Any, ranks: int, said: str | None) -> None:
    found = short_graphs.reason_against(given, ranks)
    assert (found is None) if said is None else str(found).startswith(said)


@pytest.mark.parametrize(
    ("running", "sizes"), [(48, (1, 2, 4, 8, 16, 32)), (12, (1, 2, 4, 8, 12)), (1, (1,)), (4096, (1, 2, 4, 8, 16, 32))]
)
def test_sizes_end_at_the_running_requests(running: int, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_metadata, "for_graphs", lambda given, most: given)
    config = SimpleNamespace(num_hidden_layers=5, num_kv_shared_layers=2, hidden_size=8)
    model = SimpleNamespace(
        config=config, dtype=lambda: torch.float32, embed_tokens_per_layer=torch.nn.Identity(), hidden_size_per_layer_input=4
    )
    numbers = torch.zeros(3, dtype=torch.int64)
    captured = SimpleNamespace(seq_lens=numbers, positions=numbers, out_cache_loc=numbers, req_pool_indices=numbers)
    graphs = short_graphs.ShortGraphs(model, backend(kv_indptr=torch.zeros(running + 1)), captured, print)
    assert graphs.sizes == sizes
    assert graphs.per_layer is not None
    assert graphs.per_layer.shape == (sizes[-1], 2, 4)
    model.__dict__[short_graphs.GRAPHS] = graphs
    assert short_graphs.of(model, sizes[-1]) is graphs
    assert short_graphs.of(model, sizes[-1] + 1) is None
    assert short_graphs.of(model, 0) is None
    assert [graphs.padded(rows) for rows in (1, sizes[-1])] == [1, sizes[-1]]


def test_loading_resets_the_rows_of_the_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an earlier, longer request's keys would be read for nobody."""
    monkeypatch.setattr(short_graphs.ShortGraphs, "__init__", lambda self: None)
    graphs: Any = short_graphs.ShortGraphs()  # type: ignore[call-arg]
    graphs.sizes, graphs.requests, graphs.lengths = (1, 2, 4), torch.full((4,), 9), torch.full((4,), 900)
    graphs.load(torch.tensor([5, 6, 7]), torch.tensor([50, 60, 70]))
    assert graphs.requests.tolist() == [5, 6, 7, 0]
    assert graphs.lengths.tolist() == [50, 60, 70, 1]
    graphs.load(torch.tensor([3]), torch.tensor([30]))
    assert graphs.requests.tolist() == [3, 6, 7, 0]
    assert graphs.lengths.tolist() == [30, 60, 70, 1]
