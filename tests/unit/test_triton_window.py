"""The window's length in each mode of the Triton backend, and its CUDA-graph buffers, without a model."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.models.attention_backends import create_triton_backend

WINDOW = 8


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    importlib.import_module("sglang.srt.layers.attention.triton_backend")


class Translator:
    """Stands for SGLang's ``KVIndexTranslator``: records the window's start and length of each request, and fills the indices."""

    window_kv_kind = "window"

    def __init__(self) -> None:
        self.windows: list[tuple[int, int]] = []

    def pack_read_stream(self, _plan: Any, *, seq_lens: Any, indptr: Any, out: Any, kv_start_idx: Any = None, **_: Any) -> bool:
        if kv_start_idx is not None:
            self.windows = list(zip(kv_start_idx.tolist(), seq_lens.tolist(), strict=True))
        for row, length in enumerate(seq_lens.tolist()):
            start = int(kv_start_idx[row]) if kv_start_idx is not None else 0
            out[int(indptr[row]) : int(indptr[row]) + length] = torch.arange(start, start + length)
        return True


def backend(kind: type, window: int | None = WINDOW, max_bs: int = 4) -> Any:
    """A backend of ``kind`` with just the attributes that its metadata needs."""
    made: Any = object.__new__(kind)
    made.__dict__.update(
        sliding_window_size=None if window is None else window - 1, dllm_attention=None, dcp_size=1, device="cpu",
        kv_index_translator=Translator(), token_to_kv_pool=None, use_sliding_window_kv_pool=False, skip_prefill=False,
        kv_indptr=torch.zeros(max_bs + 1, dtype=torch.int32), window_kv_indptr=torch.zeros(max_bs + 1, dtype=torch.int32),
        qo_indptr=torch.zeros(max_bs + 1, dtype=torch.int64), mask_indptr=torch.zeros(max_bs + 1, dtype=torch.int64),
        num_head=1, max_kv_splits=2, v_head_dim=4, swa_v_head_dim=None, max_context_len=64, enable_deterministic=False,
        lean_total_programs=1, lean_block_m=1, is_draft_runner=False, num_draft_tokens=None, target_verify_num_tokens_per_req=3,
        get_num_kv_splits=lambda *_: None,
    )  # fmt: skip
    return made


def batch(mode: str, seq_lens: list[int], prefix: list[int] | None = None) -> Any:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    prefix_lens = prefix or seq_lens
    return SimpleNamespace(
        batch_size=len(seq_lens), forward_mode=ForwardMode[mode], seq_lens=torch.tensor(seq_lens), seq_lens_sum=sum(seq_lens),
        req_pool_indices=torch.arange(len(seq_lens)), kv_loc_plan=None, out_cache_loc=None,
        spec_info=SimpleNamespace(custom_mask=None, num_tokens_per_req=3, kv_indptr=None) if mode == "TARGET_VERIFY" else None,
        extend_prefix_lens=torch.tensor(prefix_lens), extend_prefix_lens_cpu=prefix_lens,
        extend_seq_lens=torch.ones(len(seq_lens), dtype=torch.int64), extend_seq_lens_cpu=[1] * len(seq_lens),
    )  # fmt: skip


def kinds() -> tuple[type, type]:
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    from sglang_gemma4.attention.triton_window import Gemma4TritonAttnBackend

    return TritonAttnBackend, Gemma4TritonAttnBackend


def windows(kind: type, mode: str, seq_lens: list[int]) -> list[tuple[int, int]]:
    made = backend(kind)
    made.init_forward_metadata(batch(mode, seq_lens))
    assert made.sliding_window_size == WINDOW - 1, "restored after each call"
    found: list[tuple[int, int]] = made.kv_index_translator.windows
    return found


def test_decode_reads_the_whole_window() -> None:
    """A query at position n - 1 of n keys sees the last WINDOW of them; stock drops the first."""
    stock, ours = kinds()
    lengths = [3, WINDOW - 1, WINDOW, 20]
    assert windows(ours, "DECODE", lengths) == [(max(0, n - WINDOW), min(n, WINDOW)) for n in lengths]
    assert windows(stock, "DECODE", lengths)[-1] == (20 - WINDOW + 1, WINDOW - 1), "SGLang is right now: remove the patch"


@pytest.mark.parametrize("mode", ["EXTEND", "TARGET_VERIFY"])
def test_prefill_and_verify_are_left_alone(mode: str) -> None:
    """The first query stands one past the prefix: the window before it is WINDOW - 1 keys."""
    stock, ours = kinds()
    assert windows(ours, mode, [3, 20]) == windows(stock, mode, [3, 20]) == [(0, 3), (20 - WINDOW + 1, WINDOW - 1)]


def test_graph_buffers_hold_the_whole_window_of_every_request() -> None:
    _, ours = kinds()
    made = backend(ours)
    made.init_cuda_graph_state(max_bs=4, max_num_tokens=4)
    assert made.cuda_graph_window_kv_indices.numel() == 4 * WINDOW
    where = made.cuda_graph_window_kv_indices.data_ptr()
    lengths = torch.tensor([30, 40, 50, 60])
    _, indptr, lens, _ = made._update_decode_kv_buffers(None, 4, lengths, torch.arange(4))
    assert lens.tolist() == [WINDOW] * 4
    assert indptr.tolist() == [0, 8, 16, 24, 32]
    assert made.cuda_graph_window_kv_indices.data_ptr() == where, "a captured graph reads the buffer by address"
    assert made.cuda_graph_window_kv_indices.view(4, WINDOW).tolist() == [list(range(n - WINDOW, n)) for n in lengths.tolist()]
    assert made.sliding_window_size == WINDOW - 1


@pytest.mark.parametrize("window", [None, 0])
def test_a_model_without_window_is_left_alone(window: int | None) -> None:
    _, ours = kinds()
    made = backend(ours, window)
    made.init_forward_metadata(batch("DECODE", [20]))
    assert made.kv_index_translator.windows == []


def test_a_failure_restores_the_window() -> None:
    _, ours = kinds()
    made = backend(ours)
    with pytest.raises(TypeError):
        made._update_decode_kv_buffers(None, 4, None, None)
    assert made.sliding_window_size == WINDOW - 1


@pytest.mark.parametrize(
    ("architecture", "draft", "expected"),
    [
        ("Gemma4ForCausalLM", False, "ours"),
        ("Gemma4ForConditionalGeneration", False, "ours"),
        ("Gemma4ForCausalLM", True, "stock"),
        ("Gemma4AssistantForCausalLM", True, "stock"),
        ("Gemma3ForCausalLM", False, "stock"),
        (None, False, "stock"),
    ],
)
def test_only_gemma4_targets_get_it(architecture: str | None, draft: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stock, ours = kinds()
    monkeypatch.setattr(stock, "__init__", lambda self, runner: None)
    config = SimpleNamespace(architectures=architecture and [architecture])
    runner = SimpleNamespace(is_draft_worker=draft, model_config=SimpleNamespace(hf_config=config, is_encoder_decoder=False))
    made = create_triton_backend(runner)
    assert type(made) is (ours if expected == "ours" else stock)
    assert type(made).__name__ == "TritonAttnBackend"  # dflash_utils.py:197 goes by name
    assert isinstance(made, stock)  # gemma4_mm.py:381
