"""RMSNorm of each query, key and value head and the rotation of queries and keys, in one launch from the QKV product.

The results are new contiguous tensors, so that nothing later has to copy strided slices. As in separate kernels, the norm's output is
rounded to the model's dtype before it is rotated. The rotation is NeoX's: element ``i`` of a head's first half with element ``i`` of its
second. Partial rotation needs no extra code: the cache holds cosine 1 and sine 0 where a full layer does not rotate.

On request, the launch also writes each token's key and value rows into the KV pool, beside those it returns. Slot 0 is the
pool's place for padding tokens: like SGLang's own write on a card it leaves it as it is, however many tokens name it.
"""

from sglang_gemma4.kernels.norms.qkv_norm_rope.launch import (
    TokenTiles,
    qkv_norm_rope,
    qkv_norm_rope_reference,
    reason_against,
    write_reference,
)

__all__ = ["TokenTiles", "qkv_norm_rope", "qkv_norm_rope_reference", "reason_against", "write_reference"]
