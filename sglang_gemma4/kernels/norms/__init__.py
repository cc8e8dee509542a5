"""Norms, RoPE and residuals of a decoder layer.

:mod:`triple_rmsnorm` runs between attention and FFN, :mod:`layer_tail` at a layer's end with the next layer's input
norm, :mod:`qkv_norm_rope` after the QKV GEMM. :mod:`row_parts` lays out a prefill's rows for the first two.
"""
