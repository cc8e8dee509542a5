"""The launch that derives a step's attention metadata, on a card: SGLang's tables, and those of a replay after the lengths changed."""

import copy

import pytest
import torch

from tests.interpreted import test_step_metadata as interpreted

BATCHES = {"one long": [131_072], "eight": [1, 700, 4096, 63, 64, 65, 30_000, 2], "eighty": [17 * number + 1 for number in range(80)]}


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("window", "mapped"), [(1023, True), (511, False), (None, False)])
def test_a_replay_fills_sglang_s_tables(lengths: list[int], window: int | None, mapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    from sglang_gemma4.attention import step_metadata

    monkeypatch.setattr(interpreted, "TOKENS", max(lengths) + 64)
    monkeypatch.setattr(interpreted, "ROWS", len(lengths) + 1)
    expected = interpreted.backend(TritonAttnBackend, window, mapped, len(lengths), "cuda")
    found = copy.deepcopy(expected)
    chain = step_metadata.without_mask(expected, interpreted.step_of(torch.ones(1), torch.ones(1), torch.ones(1)).spec_info)
    # The graph's runner keeps these; a capture sees one token a request.
    many, rows = torch.ones(len(lengths), dtype=torch.int64, device="cuda"), torch.zeros(len(lengths), dtype=torch.int64, device="cuda")
    step_metadata.fill(found, len(lengths), many, rows, 4)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step_metadata.fill(found, len(lengths), many, rows, 4)
    for shift in (0, 1, 5):
        many.copy_(torch.tensor(lengths) + shift)
        rows.copy_(torch.randperm(len(lengths)) + 1)
        graph.replay()
        expected._update_target_verify_buffers(None, len(lengths), many, chain, rows)
        interpreted.same_tables(expected, found, window)


@pytest.mark.parametrize("mode", ["DECODE", "TARGET_VERIFY"])
def test_what_a_capture_records_is_stock_s_preparation(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``record`` in a graph, by the package's own backend class: the tables, and the slots of the sliding pool that the step writes."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from sglang_gemma4.attention import step_metadata
    from sglang_gemma4.attention.triton_window import Gemma4TritonAttnBackend

    requests, queries = 6, 1 if mode == "DECODE" else 4
    monkeypatch.setattr(interpreted, "ROWS", requests + 1)
    expected = interpreted.backend(Gemma4TritonAttnBackend, 64, True, requests, "cuda")
    found = copy.deepcopy(expected)
    many, rows = torch.ones(requests, dtype=torch.int64, device="cuda"), torch.zeros(requests, dtype=torch.int64, device="cuda")
    written = torch.zeros(requests * queries, dtype=torch.int64, device="cuda")
    batch = interpreted.step_of(many, rows, written)
    batch.forward_mode = ForwardMode[mode]
    graph = torch.cuda.CUDAGraph()
    with monkeypatch.context() as ours:
        ours.setattr(TritonAttnBackend, "_update_decode_kv_buffers", lambda self, _plan, *step: step_metadata.fill_decode(self, *step))
        ours.setattr(
            TritonAttnBackend,
            "_update_target_verify_buffers",
            lambda self, _plan, bs, lengths, _spec, where: step_metadata.fill(self, bs, lengths, where, 4),
        )
        if mode == "DECODE":
            batch.spec_info = None
        step_metadata.record(found, batch)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            step_metadata.record(found, batch)
    mapping = found.token_to_kv_pool.full_to_swa_index_mapping
    for real in (requests, 4, 1):
        many.fill_(1)
        rows.zero_()
        written.zero_()
        many[:real].copy_(torch.randint(1, interpreted.TOKENS - 1, (real,)))
        rows[:real].copy_(torch.randperm(requests)[:real] + 1)
        written[: real * queries].copy_(torch.randperm(30_000)[: real * queries] + 1)
        graph.replay()
        if mode == "DECODE":
            expected._update_decode_kv_buffers(None, requests, many, rows)
        else:
            expected._update_target_verify_buffers(None, requests, many, step_metadata.without_mask(expected, batch.spec_info), rows)
        interpreted.same_tables(expected, found, 64)
        assert torch.equal(found.cuda_graph_swa_out_cache_loc[: len(written)], mapping[written])
