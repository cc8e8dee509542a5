"""Sizes that FlashAttention-4 is timed and given buffers for. Without torch, so that the command line can calculate with them."""

SIZES = (1024, 2048, 4096, 8192)
"""New tokens of the batches that are timed; SGLang's chunks have up to 8,192 on a GPU of 80 GB or more."""
IN_GRAPHS = "flash_in_graphs"
"""The patch that runs FlashAttention-4 inside CUDA graphs."""
PREFIX_KEYS = 32 << 10
"""Most cached keys of all prompts of a forward in a graph: 128 MiB for 26B-A4B. Attention over more keys takes the
GPU longer than the pieces of a forward take the host."""
