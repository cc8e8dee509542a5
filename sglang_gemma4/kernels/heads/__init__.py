"""Tokens from LM heads without logits in memory: :mod:`head_argmax` of a whole head, :mod:`centroid_argmax` of one ordered by centroid."""
