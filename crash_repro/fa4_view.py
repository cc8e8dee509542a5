"""MTP on fa4: sliding layers of the draft look up the full pool's pages in the target's sliding pool. Needs no GPU.

Drives the real ``FlashAttentionBackend``, built as the draft worker builds it, in the real frozen-KV views: metadata in
one, the forward in the other. Only the FlashAttention kernel is replaced, by one that keeps the page table it is given.
"""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import case  # type: ignore[import-not-found]

PAGE, LENGTH, WINDOW = 4, 22, 8
FULL, SLIDING = [11, 15, 9, 14, 12, 10], [3, 1, 2, 6, 5, 4]
"""Pages of the request in the two pools; the sliding pool has 8, the full one 16."""


def main() -> int:
    """The pages read by a full and by a sliding layer of the draft."""
    from sglang_gemma4.cpu.environment import prepare_this_process

    prepare_this_process()
    import sgl_kernel  # type: ignore[import-untyped,unused-ignore]
    import torch

    sgl_kernel.merge_state_v2 = None  # imported by the backend, called for topk > 1 only
    from sglang.srt.layers.attention import flashattention_backend as module
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.plugins import load_plugins
    from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPContext

    load_plugins()
    from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPDraftWorker  # which a plugin may have replaced

    slots = torch.tensor(FULL)[:, None] * PAGE + torch.arange(PAGE)
    target = _target_pool(slots.flatten(), (torch.tensor(SLIDING)[:, None] * PAGE + torch.arange(PAGE)).flatten())
    backend = _draft_backend(module, slots.flatten()[None].int(), target)
    context = FrozenKVMTPContext(target_token_to_kv_pool=target, physical_layer_ids={0: 0, 1: 1})
    worker: Any = SimpleNamespace(kv_context=context, draft_attn_backend=backend)
    batch = SimpleNamespace(
        forward_mode=ForwardMode.DECODE, batch_size=1, seq_lens=torch.tensor([LENGTH]), seq_lens_cpu=torch.tensor([LENGTH]),
        encoder_lens=None, req_pool_indices=torch.tensor([0]), out_cache_loc=None, spec_info=None, kv_loc_plan=None, _attn_output=None,
    )  # fmt: skip
    read: list[Any] = []

    def kernel(q: Any, page_table: Any, **_: Any) -> Any:
        read.append(page_table[0].tolist())
        return q

    with FrozenKVMTPDraftWorker._frozen_kv_target_view(worker, batch):
        backend.init_forward_metadata(batch)
    with FrozenKVMTPDraftWorker._target_kv_pool_view(worker, batch), patch.object(module, "flash_attn_with_kvcache", kernel):
        for layer_id, window in ((0, -1), (1, WINDOW - 1)):
            layer = SimpleNamespace(
                layer_id=layer_id, sliding_window_size=window, attn_type=None, is_cross_attention=False, k_scale=None, v_scale=None,
                tp_q_head_num=1, tp_k_head_num=1, tp_v_head_num=1, head_dim=8, v_head_dim=8, scaling=1.0, logit_cap=0.0,
            )  # fmt: skip
            backend.forward_decode(torch.zeros(1, 8), None, None, layer, batch, save_kv_cache=False)
    print(f"the sliding pool has {len(target.get_kv_buffer(1)[0]) // PAGE} pages")
    return int(case.verdict({"full": FULL, "sliding": SLIDING}, dict(zip(("full", "sliding"), read, strict=True))))


def _target_pool(slots: Any, sliding_slots: Any) -> Any:
    """A ``SWAKVPool`` of one full and one sliding layer, reduced to what attention reads of it."""
    import torch
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    class Pool(SWAKVPool):  # type: ignore[misc]
        def __init__(self) -> None:
            self.layers_mapping = {0: (0, False), 1: (0, True)}
            self.swa_layer_nums = self.full_layer_nums = 1
            self.full_to_swa_index_mapping = torch.zeros(16 * PAGE, dtype=torch.int64)
            self.full_to_swa_index_mapping[slots] = sliding_slots

        def get_kv_buffer(self, layer_id: int) -> tuple[Any, Any]:
            return (torch.zeros((16, 8)[layer_id] * PAGE, 1, 8),) * 2

    return Pool()


def _draft_backend(module: Any, req_to_token: Any, target: Any) -> Any:
    """fa4 as the draft runner makes it; the draft's own pool is no ``SWAKVPool`` (64 slots of its own layers)."""
    own = SimpleNamespace()
    return make_backend(module, lambda runner: module.FlashAttentionBackend(runner, fa_impl_ver=4), req_to_token, own, target)


def make_backend(
    module: Any, create: Callable[[Any], Any], req_to_token: Any, pool: Any, target: Any, context: int = 0, draft: bool = True
) -> Any:
    """What ``create`` makes of a runner of the draft, or of the target; ``context`` is what ``req_to_token`` holds unless it is given."""
    import torch

    bag = SimpleNamespace(
        speculative_eagle_topk=1, speculative_num_draft_tokens=4, speculative_algorithm="FROZEN_KV_MTP", is_embedding=False,
        chunked_prefill_size=64, disable_radix_cache=False, attn_cp_size=1, attn_tp_size=1, enable_prefill_cp=False, attn_dp_enabled=False,
        deterministic=SimpleNamespace(enable_deterministic_inference=False),
    )  # fmt: skip
    model = SimpleNamespace(
        is_encoder_decoder=False, context_len=context or req_to_token.shape[1], attention_arch=None, is_local_attention_model=False,
        hf_config=SimpleNamespace(architectures=["Gemma4ForConditionalGeneration"]),
        head_dim=8, hf_text_config=SimpleNamespace(num_attention_heads=1), get_num_kv_heads=lambda _: 1,
    )  # fmt: skip
    translator = SimpleNamespace(
        is_translating=False, reads_are_translated=False, write_ids=lambda *_: None
    )  # as for every batch that writes no KV
    runner = SimpleNamespace(
        model_config=model, sliding_window_size=WINDOW - 1, device="cpu", kv_cache_dtype=torch.bfloat16, kv_cache_dtype_str="auto",
        page_size=PAGE, req_to_token_pool=SimpleNamespace(req_to_token=req_to_token), token_to_kv_pool=pool,
        kv_index_translator=translator, token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: target), is_draft_worker=draft,
        skip_prefill=False,
    )  # fmt: skip
    names = ("get_exec", "get_memory", "get_model", "get_parallel", "get_schedule", "get_spec")
    stubs: dict[str, Any] = {name: lambda: bag for name in names}
    stubs |= {"get_device_capability": lambda: (9, 0), "resolve_num_tokens_per_req": lambda **_: 4, "get_kv_shard_pool": lambda _: None}
    kernels = {"sglang.kernels.ops.attention.flash_attention_v4": MagicMock()}
    with patch.multiple(module, **stubs), patch.dict(sys.modules, kernels):
        return create(runner)


if __name__ == "__main__":
    sys.exit(main())
