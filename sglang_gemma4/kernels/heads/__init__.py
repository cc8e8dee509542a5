"""Argmax of LM heads without logits in memory: :mod:`head_argmax` over all tokens, :mod:`centroid_argmax` by centroid."""
