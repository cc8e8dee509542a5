"""What the triton backend fills before the replay of a verify's graph: for a chain in our kernel the slots of keys, and nothing else."""

import importlib
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_gemma4.attention.verify import VerifyAttention
from sglang_gemma4.patches import lean_verify
from tests.unit.test_triton_window import WINDOW, backend

LENGTHS = [3, 20, WINDOW, 41]
TOUCHED = ("kv_indptr", "window_kv_indptr", "cuda_graph_kv_indices", "cuda_graph_window_kv_indices")
BESIDE = ("qo_indptr", "mask_indptr", "cuda_graph_window_kv_offsets")


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    importlib.import_module("sglang.srt.layers.attention.triton_backend")


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.kernels[str(func)] += 1
        return func(*args, **(kwargs or {}))


def target(window: int | None, topk: int = 1, steps: int = 5, declined: int = 0) -> Any:
    """A target's backend with graph buffers, whose graphs were captured with that many layers in our kernel and in SGLang's."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    made = backend(TritonAttnBackend, window)
    made.num_draft_tokens = 3
    made.init_cuda_graph_state(max_bs=4, max_num_tokens=12)
    made.kv_index_translator.pack_read_stream = counted_once(made.kv_index_translator.pack_read_stream)
    made.verify_splitkv_fwd = VerifyAttention(topk)
    made.verify_splitkv_fwd.steps, made.verify_splitkv_fwd.declined = steps, declined
    return made


def counted_once(pack: Any) -> Any:
    """SGLang packs with one kernel; the stand-in's many operators are not counted."""

    def packed(*args: Any, **kwargs: Any) -> bool:
        with torch.utils._python_dispatch._disable_current_modes():
            done: bool = pack(*args, **kwargs)
        return done

    return packed


def fill(made: Any, ours: bool) -> Counter[str]:
    """As before a replay; the operators it took."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    info = SimpleNamespace(custom_mask=made.verify_mask.buffer, num_tokens_per_req=3)
    given = (made, None, len(LENGTHS), torch.tensor(LENGTHS), info, torch.arange(len(LENGTHS)))
    count = Count()
    with count:
        if ours:
            lean_verify.keys_alone(TritonAttnBackend._update_target_verify_buffers, *given)
        else:
            TritonAttnBackend._update_target_verify_buffers(*given)
    return count.kernels


@pytest.mark.parametrize("window", [WINDOW, None])
def test_slots_are_stocks_and_the_rest_is_left_alone(window: int | None) -> None:
    stock, ours = target(window), target(window)
    before = {name: getattr(ours, name).clone() for name in BESIDE if hasattr(ours, name)}
    full, short = fill(stock, ours=False), fill(ours, ours=True)
    for name in TOUCHED:
        if hasattr(stock, name):
            assert torch.equal(getattr(ours, name), getattr(stock, name)), name
    assert ours.kv_indptr.tolist() == [0, 3, 23, 31, 72]
    for name, value in before.items():
        assert torch.equal(getattr(ours, name), value), name
    assert full.total() - short.total() == (8 if window else 7)


@pytest.mark.parametrize(
    "unfit", [{"topk": 2}, {"steps": 0}, {"declined": 1}], ids=["trees", "none captured yet", "a layer in SGLang's kernel"]
)
def test_all_is_filled_where_sglangs_kernel_may_read_it(unfit: dict[str, int]) -> None:
    stock, ours = target(WINDOW), target(WINDOW, **unfit)
    assert fill(ours, ours=True) == fill(stock, ours=False)
    for name in TOUCHED + BESIDE:
        assert torch.equal(getattr(ours, name), getattr(stock, name)), name
    assert ours.qo_indptr.tolist() == [0, 3, 6, 9, 12]


def test_sglangs_own_kernel_is_filled_for() -> None:
    stock, ours = target(WINDOW), target(WINDOW)
    del ours.verify_splitkv_fwd
    assert fill(ours, ours=True) == fill(stock, ours=False)


def test_a_declined_layer_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_gemma4.attention.verify.note", lambda *_: None)
    attention = VerifyAttention(1)
    attention.steps = 3
    assert attention.reads_keys_only
    q, keys, none = torch.zeros(2, 4, 32), torch.zeros(9, 2, 32), torch.zeros(2, dtype=torch.int32)
    arguments = (q, q[:, :2], q[:, :2], q.clone(), keys, keys, none, none, none, None, False, None, 1, 1.0, 1.0, 1.0)
    others = {"logit_cap": 0.0, "sliding_window_size": -1, "sinks": None, "window_kv_offsets": None, "xai_temperature_len": -1, "max_bs": 4}
    assert not attention(*arguments, **others)  # type: ignore[arg-type]
    assert not attention.reads_keys_only
