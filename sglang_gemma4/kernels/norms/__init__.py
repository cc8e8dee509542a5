"""Norms, rotation and residuals of a decoder layer.

:mod:`triple_rmsnorm` between attention and FFN, :mod:`layer_tail` at a layer's end with the next layer's input norm, :mod:`qkv_norm_rope`
behind the QKV product. :mod:`row_parts` is how the first two take the rows of a prefill.
"""
