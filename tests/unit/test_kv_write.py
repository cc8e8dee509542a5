"""Who writes a layer's keys and values: where our launch does, it is where SGLang would; and each reason to leave it to SGLang."""

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.model_executor.runner_utils.prefill_graph import prefill_graph_scope

from sglang_gemma4 import patching
from sglang_gemma4.attention.triton_window import Gemma4TritonAttnBackend
from sglang_gemma4.kernels.norms import qkv_norm_rope
from sglang_gemma4.kernels.norms.qkv_norm_rope import write_reference
from sglang_gemma4.models import build, forwards
from sglang_gemma4.models.layers import kv_write, qkv_rope
from sglang_gemma4.patching import switches

FULL, SLIDING = 1, 0
X = torch.zeros(3, 8)


@pytest.fixture(autouse=True)
def wanted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(patching.declare, "_outcomes", {"kv_write": patching.Outcome("kv_write", "SWITCH", "", "active")})
    monkeypatch.setattr(kv_write, "get_parallel", lambda: SimpleNamespace(attn_cp_size=1))
    kv_write.want(True)
    yield
    kv_write.want(False)


def one_pool(**change: Any) -> MHATokenToKVPool:
    given = {"size": 12, "page_size": 1, "dtype": torch.float32, "head_num": 2, "head_dim": 16, "layer_num": 3, "device": "cpu"}
    return MHATokenToKVPool(**{**given, "enable_memory_saver": False, **change})


def two_pools() -> SWAKVPool:
    """Of three sliding layers and two full ones, with heads of other sizes."""
    return SWAKVPool(
        size=12, size_swa=8, page_size=1, dtype=torch.float32, head_num=1, head_dim=32, swa_head_num=2, swa_head_dim=16, swa_v_head_dim=16,
        swa_attention_layer_ids=[0, 2, 4], full_attention_layer_ids=[1, 3], device="cpu",
    )  # fmt: skip


def backend_with(pool: Any, kind: type = TritonAttnBackend, **change: Any) -> Any:
    backend: Any = object.__new__(kind)
    given = {"token_to_kv_pool": pool, "dcp_size": 1, "forward_metadata": SimpleNamespace(swa_out_cache_loc=torch.tensor([3, 0, 7]))}
    vars(backend).update(given | change)
    return backend


def batch_with(**change: Any) -> Any:
    given = {"forward_mode": ForwardMode.DECODE, "out_cache_loc": torch.tensor([5, 0, 11]), "out_cache_loc_is_physical": True}
    return SimpleNamespace(**{**given, "global_num_token_non_padded_cpu": 3, **change})


def layer_with(number: int, **change: Any) -> Any:
    return SimpleNamespace(layer_id=number, k_scale=None, v_scale=None, is_cross_attention=False, **change)


def found(backend: Any, number: int = 0, batch: Any = None, rows: torch.Tensor = X, **change: Any) -> Any:
    layer = layer_with(number)
    vars(layer).update(change)
    with forward_context(ForwardContext(attn_backend=backend)):
        return kv_write.destination(SimpleNamespace(attn=layer), rows, batch or batch_with())


@pytest.mark.parametrize("kind", [TritonAttnBackend, Gemma4TritonAttnBackend])
@pytest.mark.parametrize("make", [one_pool, two_pools, lambda: one_pool(start_layer=2, end_layer=4)])
def test_it_is_where_sglang_writes(kind: type, make: Any) -> None:
    """Bit for bit, in every buffer of every layer; slot 0, which SGLang's write on a card skips, aside."""
    torch.manual_seed(0)
    ours, theirs = make(), make()
    first = 2 if type(ours) is MHATokenToKVPool and ours.start_layer else 0
    for number in range(first, first + (5 if type(ours) is SWAKVPool else 3)):
        where = found(backend_with(ours, kind), number)
        k, v = (torch.randn(3, *where.k_cache.shape[1:]) for _ in range(2))
        write_reference(k, v, *where)
        backend, batch = backend_with(theirs, kind), batch_with()
        locations = KVWriteLoc.for_batch(batch, swa_loc=backend.forward_metadata.swa_out_cache_loc)
        backend._set_kv_buffer(batch, layer_with(number), locations, k, v)
    parts = (
        [(ours, theirs)]
        if type(ours) is MHATokenToKVPool
        else [(getattr(ours, n), getattr(theirs, n)) for n in ("full_kv_pool", "swa_kv_pool")]
    )
    for one, other in parts:
        for mine, stock in zip([*one.k_buffer, *one.v_buffer], [*other.k_buffer, *other.v_buffer], strict=True):
            assert mine[1:].any()
            assert torch.equal(mine[1:], stock[1:])
            assert not mine[0].any()


def test_nobody_asked() -> None:
    kv_write.want(False)
    assert found(backend_with(one_pool())) is None


def test_an_idle_rank_writes_nothing() -> None:
    assert found(backend_with(one_pool()), batch=batch_with(forward_mode=ForwardMode.IDLE)) is None


def test_a_longer_sliding_location_is_cut_as_sglang_cuts_it() -> None:
    long = SimpleNamespace(swa_out_cache_loc=torch.tensor([3, 0, 7, 2]))
    assert found(backend_with(two_pools(), forward_metadata=long), SLIDING).slots.tolist() == [3, 0, 7]


class Watched(MHATokenToKVPool):  # type: ignore[misc]
    """A pool with a write of its own, perhaps."""


class Other(TritonAttnBackend):  # type: ignore[misc]
    """Another backend that derives from triton's."""


def changed(pool: Any, **change: Any) -> Any:
    vars(pool).update(change)
    return pool


def watched() -> Any:
    pool = one_pool()
    pool.__class__ = Watched
    return pool


def sub_pool_hooked() -> Any:
    pool = two_pools()
    pool.swa_kv_pool.set_kv_buffer = None
    return pool


PREFILL = {"forward_mode": ForwardMode.EXTEND, "global_num_token_non_padded_cpu": 2}


@pytest.mark.parametrize(
    ("backend", "call", "said"),
    [
        (lambda: backend_with(one_pool(), Other), {}, "attention is Other, not triton's"),
        (lambda: backend_with(one_pool(), dcp_size=2), {}, "keys are split over ranks"),
        (lambda: backend_with(one_pool(), _set_kv_buffer=None), {}, "_set_kv_buffer of the TritonAttnBackend is hooked"),
        (lambda: backend_with(watched()), {}, "the KV pool is a Watched"),
        (lambda: backend_with(changed(one_pool(), set_kv_buffer=None)), {}, "set_kv_buffer of the MHATokenToKVPool is hooked"),
        (lambda: backend_with(changed(one_pool(), _store_kv_layer=None)), {}, "_store_kv_layer of the MHATokenToKVPool is hooked"),
        (lambda: backend_with(changed(two_pools(), set_kv_buffer=None)), {}, "set_kv_buffer of the SWAKVPool is hooked"),
        (lambda: backend_with(sub_pool_hooked()), {}, "set_kv_buffer of the MHATokenToKVPool is hooked"),
        (lambda: backend_with(one_pool(dtype=torch.float16)), {}, "the KV cache is torch.float16 stored as torch.float16, the model"),
        (lambda: backend_with(one_pool(dtype=torch.float8_e4m3fn)), {}, "the KV cache is torch.float8_e4m3fn stored as torch.uint8"),
        (lambda: backend_with(changed(one_pool(), quant_method=object())), {}, "the KV cache is torch.float32 stored as"),
        (lambda: backend_with(changed(one_pool(), use_hnd=True)), {}, "the KV cache's layout is hnd"),
        (lambda: backend_with(changed(one_pool(), kv_cache_layout="vectorized_5d")), {}, "the KV cache's layout is vectorized_5d"),
        (
            lambda: backend_with(changed(one_pool(), requires_physical_write_loc=True)),
            {"batch": batch_with(out_cache_loc_is_physical=False)},
            "physical locations only",
        ),
        (lambda: backend_with(one_pool()), {"k_scale": 1.0}, "scaled in the cache"),
        (lambda: backend_with(one_pool()), {"v_scale": 1.0}, "scaled in the cache"),
        (lambda: backend_with(one_pool()), {"is_cross_attention": True}, "an encoder's"),
        (
            lambda: backend_with(one_pool()),
            {"batch": batch_with(**PREFILL)},
            "the prefill is padded, and attention writes the real tokens alone",
        ),
        (lambda: backend_with(one_pool()), {"rows": X[:2]}, "there is not one location in order for each token of a full layer"),
        (lambda: backend_with(one_pool()), {"batch": batch_with(out_cache_loc=torch.arange(6)[::2])}, "there is not one location in order"),
        (
            lambda: backend_with(two_pools(), forward_metadata=SimpleNamespace(swa_out_cache_loc=None)),
            {"number": SLIDING},
            "there is not one location in order for each token of a sliding layer",
        ),
    ],
)
def test_what_is_left_to_sglang(backend: Any, call: dict[str, Any], said: str) -> None:
    reason = found(backend(), **call)
    assert isinstance(reason, str)
    assert said in reason


def test_other_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_with(one_pool())
    with prefill_graph_scope(full_graph=False):
        assert "captured in a graph" in found(backend)
    with monkeypatch.context() as patched:
        patched.setattr(kv_write, "is_in_breakable_cuda_graph", lambda: True)
        assert "captured in a graph" in found(backend)
    monkeypatch.setattr(kv_write, "get_parallel", lambda: SimpleNamespace(attn_cp_size=2))
    assert "context parallel 2, in decode 1" in found(backend)


def test_the_patch_asks_where_nothing_is_against_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    kv_write.want(False)
    build.write_early()
    assert kv_write._wanted
    assert not caplog.records
    monkeypatch.setenv(switches.WITHOUT, "qkv_rope")
    for _ in range(2):
        build.write_early()
    assert not kv_write._wanted
    assert ["qkv_rope is off" in record.getMessage() for record in caplog.records] == [True]


def test_what_the_process_has_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.reason_against() is None
    with monkeypatch.context() as patched:
        patched.setenv("SGLANG_ENABLE_ASYNC_ASSERT", "1")
        assert build.reason_against() == "SGLang is asked to check each location as it is written"
    write: Any = MHATokenToKVPool.set_kv_buffer

    def wrapper(*args: Any) -> Any:
        return write(*args)

    with monkeypatch.context() as patched:
        patched.setattr(MHATokenToKVPool, "set_kv_buffer", wrapper)
        assert "MHATokenToKVPool.set_kv_buffer has source" in str(build.reason_against())
        wrapper.__wrapped__ = write  # type: ignore[attr-defined]
        assert str(build.reason_against()).endswith("MHATokenToKVPool.set_kv_buffer is hooked")
    with monkeypatch.context() as patched:
        patched.setattr(SWAKVPool, "set_kv_buffer", len)
        assert "has no source to compare" in str(build.reason_against())


@pytest.mark.parametrize(("kind", "writes"), [(TritonAttnBackend, True), (Other, False)])
def test_attention_writes_what_the_launch_does_not(
    kind: type, writes: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Through the hook of ``qkv_rope``: buffers go to the kernel, and attention is told; else it says why once."""
    caplog.set_level(logging.WARNING)
    launched, attended = [], []

    def kernel(*given: Any) -> Any:
        launched.append(given[8:])
        return X, X, X

    class Attention:
        def __call__(self, q: Any, k: Any, v: Any, forward_batch: Any, save_kv_cache: bool) -> torch.Tensor:
            attended.append(save_kv_cache)
            return X

    monkeypatch.setattr(qkv_rope, "reason_against", lambda *_: None)
    monkeypatch.setattr(qkv_norm_rope, "qkv_norm_rope", kernel)
    pool, batch, layer = one_pool(), batch_with(), Attention()
    vars(layer).update(vars(layer_with(1)))
    norm = SimpleNamespace(weight=X, eps=1e-6)
    attention = SimpleNamespace(
        is_kv_shared_layer=False, attn=layer, qkv_proj=lambda x: (x, None), o_proj=lambda x: (x, None), q_norm=norm, k_norm=norm,
        rotary_emb=SimpleNamespace(cos_sin_cache=X), num_heads=1, num_kv_heads=1,
    )  # fmt: skip
    with forward_context(ForwardContext(attn_backend=backend_with(pool, kind))):
        for _ in range(2):
            forwards.normed_and_rotated(print, attention, torch.arange(3), X, batch)
    assert attended == [not writes] * 2
    assert [tuple(map(id, given)) for given in launched] == [
        (id(pool.k_buffer[1]), id(pool.v_buffer[1]), id(batch.out_cache_loc)) if writes else ()
    ] * 2
    assert ["attention is Other, not triton's" in record.getMessage() for record in caplog.records] == [True] * (not writes)


def test_without_our_launch_it_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(qkv_rope, "reason_against", lambda *_: "Triton does not run on cpu")
    for asked in (True, True, False):
        kv_write.want(asked)
        forwards.normed_and_rotated(lambda *_: X, None, None, X, None)
    said = "sglang-gemma4: kv_write declined: SGLang's norms and rotation run: Triton does not run on cpu"
    assert [record.getMessage() for record in caplog.records] == [said]
