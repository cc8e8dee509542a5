"""Say which fused kernels of a decoder layer ran: ``TEST_INSTRUMENTS=fused_layer_counter:install``."""

import functools
from typing import Any


def install() -> None:
    """One line on the log for each kernel's first launch, and one for each norm that another kernel computed ahead."""
    from sglang_gemma4.kernels.dense import gated_embedding
    from sglang_gemma4.kernels.norms import layer_tail, qkv_norm_rope, triple_rmsnorm
    from sglang_gemma4.models.layers.decoder_layer import ReadyNorm

    # An interpreted program takes milliseconds: four heads in each, not one; both are in tests/interpreted.
    qkv_norm_rope.HEADS_OF_SMALL_STEPS = 0
    places: list[tuple[Any, str]] = [
        (triple_rmsnorm, "triple_rmsnorm"),
        (layer_tail, "tail"),
        (layer_tail, "dual_tail"),
        (gated_embedding, "gated_embedding"),
        (qkv_norm_rope, "qkv_norm_rope"),
    ]
    for module, name in places:
        setattr(module, name, _announced(name, getattr(module, name)))
    _count_writes()
    original: Any = ReadyNorm.__call__
    norms: set[int] = set()

    @functools.wraps(original)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.taken
        result = original(self, *args, **kwargs)
        if self.taken > before and id(self) not in norms:
            norms.add(id(self))
            print(f"HANDED OUT {len(norms)} norms", flush=True)
        return result

    ReadyNorm.__call__ = counted  # type: ignore[method-assign]


def _count_writes() -> None:
    """One line for the first keys and values that SGLang's pool writes, and one for the first that the rotation's launch does."""
    from sglang.srt.mem_cache import memory_pool

    from sglang_gemma4.kernels.norms import qkv_norm_rope

    memory_pool._set_kv_buffer_impl = _announced("store_kvcache", memory_pool._set_kv_buffer_impl)
    reason: Any = qkv_norm_rope.write_reason_against
    qkv_norm_rope.write_reason_against = _announced("kv_write", reason)


def _announced(name: str, original: Any) -> Any:
    said = False

    @functools.wraps(original)
    def announced(*args: Any, **kwargs: Any) -> Any:
        nonlocal said
        if not said:
            said = True
            print(f"LAUNCHED {name}.", flush=True)
        return original(*args, **kwargs)

    return announced
