"""fp8 KV cache and KV-shared layers (E2B, E4B) on triton: the first prefill does not compile. Needs no GPU: Triton's interpreter.

Drives the real ``TritonAttnBackend.forward_extend``, with the package the one it puts in its place, on a pool of fp8 keys:
once as a layer calls it that has keys of its own, once as a KV-shared layer does, without any. Both attend to the same keys.
"""

import os
import sys
from types import SimpleNamespace
from typing import Any

import case  # type: ignore[import-not-found]

TOKENS, PREFIX, HEADS, DIM = 5, 3, 2, 16


def main() -> int:
    """Whether the shared layer's attention is that of the layer whose keys it shares."""
    os.environ["TRITON_INTERPRET"] = "1"
    from sglang_gemma4.cpu.environment import prepare_this_process

    prepare_this_process()
    import torch
    from sglang.srt.plugins import load_plugins

    load_plugins()
    torch.manual_seed(0)
    cache = torch.randn(2, 32, 1, DIM).to(torch.float8_e4m3fn)  # K and V
    slots = torch.randperm(32)[: PREFIX + TOKENS]
    query = torch.randn(TOKENS, HEADS, DIM)
    owner = _forward_extend(cache, slots, query, cache[0, slots[PREFIX:]].float(), cache[1, slots[PREFIX:]].float())
    try:
        shared = _forward_extend(cache, slots, query, None, None)
        seen = "the owner's attention" if torch.allclose(shared, owner, atol=0.1) else "other values"
    except Exception as error:
        seen = f"{type(error).__name__}: {error.args[0] if error.args else ''!r}"
    print(f"the layer with keys of its own: {[round(x, 3) for x in owner[0, 0, :4].tolist()]}, ...")
    return int(case.verdict("the owner's attention", seen))


def _forward_extend(cache: Any, slots: Any, query: Any, keys: Any, values: Any) -> Any:
    import torch
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    backend = object.__new__(TritonAttnBackend)
    _run_hooks(backend)
    backend.__dict__.update(
        token_to_kv_pool=SimpleNamespace(
            get_kv_buffer=lambda _: tuple(cache), get_key_buffer=lambda _: cache[0], get_value_buffer=lambda _: cache[1]
        ),
        forward_metadata=SimpleNamespace(
            qo_indptr=torch.tensor([0, TOKENS]), kv_indptr=torch.tensor([0, PREFIX]), kv_indices=slots[:PREFIX], custom_mask=None,
            mask_indptr=None, max_extend_len=TOKENS, swa_out_cache_loc=None,
        ),
        dcp_size=1, page_size=1, enable_deterministic=False, use_verify_shared_kv=False, use_verify_splitkv=False, dllm_attention=None,
        allow_bidirectional_attention_in_extend=False, extend_attention_fwd=extend_attention_fwd,
    )  # fmt: skip
    layer = SimpleNamespace(
        layer_id=0, qk_head_dim=DIM, v_head_dim=DIM, tp_q_head_num=HEADS, is_cross_attention=False, attn_type=None,
        sliding_window_size=None, k_scale=None, v_scale=None, scaling=DIM**-0.5, logit_cap=0.0, logit_capping_method="tanh",
        xai_temperature_len=-1,
    )  # fmt: skip
    batch = SimpleNamespace(
        forward_mode=ForwardMode.EXTEND, out_cache_loc=slots[PREFIX:], mha_one_shot=False, extend_seq_lens_cpu=[TOKENS],
        out_cache_loc_is_physical=False, _attn_output=None,
    )  # fmt: skip
    backend._can_run_dense_fp8_chunked_mha = lambda *_: False
    return backend.forward_extend(query, keys, values, layer, batch, save_kv_cache=False).view(TOKENS, HEADS, DIM)


def _run_hooks(backend: Any) -> None:
    """What the package does behind the backend's constructor, which would need a whole server; nothing on stock."""
    from sglang_gemma4 import patching
    from sglang_gemma4.models import attention_backends

    if any(one.name == "kv_formats" and one.state == "active" for one in patching.report()):
        backend.dcp_size, backend.enable_deterministic = 1, False
        model = SimpleNamespace(hf_config=SimpleNamespace(architectures=["Gemma4ForCausalLM"], num_kv_shared_layers=1))
        runner = SimpleNamespace(kv_cache_dtype_str="fp8_e4m3", model_config=model, is_draft_worker=False)
        attention_backends.read_levels(backend, runner)


if __name__ == "__main__":
    sys.exit(main())
