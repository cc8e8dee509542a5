"""Formats of a quantised KV cache, and the launch that writes them."""
