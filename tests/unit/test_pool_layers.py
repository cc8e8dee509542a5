"""SGLang's pools without the KV-shared layers: moves, host copies and transfer lists, layer by layer."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.disaggregation.common.conn import CommonKVManager
from sglang.srt.mem_cache import l2_transfer
from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler as assembler
from sglang.srt.mem_cache.pool_host import base, mha
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from tests.harness.instruments import host_cache

SLIDING, FULL = [0, 1, 2, 3], [4]
"""Layers of tiny-e2b that own their KV; 5 to 9 read layer 3's or 4's."""
SLOTS, WINDOW_SLOTS = 32, 16


@pytest.fixture
def pool() -> Any:
    """A real pool with random contents; full slot i has sliding slot i % 16."""
    pool = SWAKVPool(
        size=SLOTS,
        size_swa=WINDOW_SLOTS,
        page_size=1,
        dtype=torch.float32,
        head_num=1,
        head_dim=32,
        swa_attention_layer_ids=SLIDING,
        full_attention_layer_ids=FULL,
        device="cpu",
        enable_kv_cache_copy=True,
        swa_head_num=1,
        swa_head_dim=16,
        swa_v_head_dim=16,
    )
    pool.register_mapping(torch.arange(SLOTS + 1) % WINDOW_SLOTS)
    generator = torch.Generator().manual_seed(0)
    for buffer in (buffer for layer in SLIDING + FULL for buffer in pool.get_kv_buffer(layer)):
        buffer.copy_(torch.randn(buffer.shape, generator=generator))
    return pool


def contents(pool: Any) -> dict[int, list[torch.Tensor]]:
    """K and V of each layer, copied."""
    return {layer: [buffer.clone() for buffer in pool.get_kv_buffer(layer)] for layer in SLIDING + FULL}


def test_a_move_takes_every_layer_and_nothing_else(pool: Any) -> None:
    before = contents(pool)
    target, source = torch.tensor([3, 4, 5, 6]), torch.tensor([4, 6, 5, 9])  # 4 and 6 are read and written
    pool.move_kv_cache(target, source)
    for layer, buffers in before.items():
        for was, now in zip(buffers, pool.get_kv_buffer(layer), strict=True):
            expected = was.clone()
            expected[target] = was[source]
            assert torch.equal(now, expected), layer


def test_layers_come_back_from_the_host_into_other_slots(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mha, "transfer_kv_direct", host_cache.transfer_kv_direct, raising=False)
    mappings = assembler._swa_layer_mappings(pool)
    layers = max(mappings[0] | mappings[1]) + 1  # hybrid_pool_assembler.py:571
    assert (mappings, layers) == (({4: 0}, {0: 0, 1: 1, 2: 2, 3: 3}), 5)
    before, engine = contents(pool), l2_transfer.L2TransferEngine("direct")
    slots, new, host = torch.arange(3, 9), torch.arange(10, 16), torch.arange(6)
    out: list[l2_transfer.L2Transfer] = []
    back: list[l2_transfer.L2Transfer] = []
    done: list[int] = []
    for part, mapping in zip((pool.full_kv_pool, pool.swa_kv_pool), mappings, strict=True):
        host_class, info, arguments = assembler._mha_host_inputs(part)
        with base.host_memory_budget_scope(1 << 20):  # else 10 GiB of this machine's memory must stay free
            copy = host_class(info, 2.0, 0, 1, "layer_first", pin_memory=False, **arguments)
        out.append(l2_transfer.L2Transfer(copy, part, host, slots, assembler._make_layer_mapper(mapping, layers)))
        back.append(out[-1]._replace(device_indices=new))
    engine.submit_device_to_host(out)
    engine.submit_host_to_device(back, transfer_layer_id_max=layers, on_layer_done=done.append)
    assert done == SLIDING + FULL, "each layer that attention waits for is reported"
    for layer, buffers in before.items():
        for was, now in zip(buffers, pool.get_kv_buffer(layer), strict=True):
            expected = was.clone()
            expected[new] = was[slots]
            assert torch.equal(now, expected), layer


def test_transfer_lists_name_the_owned_layers_keys_then_values(pool: Any) -> None:
    for layers, (addresses, _, rows) in ((FULL, pool.get_contiguous_buf_infos()), (SLIDING, pool.get_state_buf_infos())):
        buffers = [pool.get_key_buffer(layer) for layer in layers] + [pool.get_value_buffer(layer) for layer in layers]
        assert addresses == [buffer.data_ptr() for buffer in buffers]
        assert rows == [buffer[0].nbytes for buffer in buffers]


def paired(prefill: int, decode: int) -> list[tuple[str, str]]:
    """What Mooncake's sender writes where, for servers with so many layers of a kind."""
    lists = [[f"{kind}{layer}" for kind in "kv" for layer in range(count)] for count in (prefill, decode)]
    manager: Any = SimpleNamespace(kv_args=SimpleNamespace(prefill_start_layer=0))
    source_k, source_v, target_k, target_v, _ = CommonKVManager.get_mha_kv_ptrs_with_pp(manager, *lists)
    return [*zip(source_k, target_k, strict=True), *zip(source_v, target_v, strict=True)]


@pytest.mark.parametrize(("owned", "all_layers"), [(3, 7), (12, 28), (4, 7), (20, 35)], ids=["e2b", "e2b-sliding", "e4b", "e4b-sliding"])
def test_why_servers_with_different_layers_must_not_pair(owned: int, all_layers: int) -> None:
    assert all(source == target for source, target in paired(owned, owned))
    with pytest.raises(ValueError, match="zip"):  # SGLang: IndexError in its transfer thread
        paired(all_layers, owned)
    assert any(source != target for source, target in paired(owned, all_layers)), "values in other layers' buffers, without an error"
