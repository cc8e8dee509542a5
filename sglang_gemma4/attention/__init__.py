"""Attention backends of SGLang, as Gemma 4 needs them."""
