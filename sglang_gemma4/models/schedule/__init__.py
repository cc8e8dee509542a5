"""When, where and over which rows layers run.

- CUDA graphs of prefills: :mod:`prefill_backend` (whether a server has them), :mod:`prefill_sizes` (of which sizes), :mod:`prefill_graph`
  (what SGLang's lack for Gemma 4);
- fast prefill, where layers that share KV see only the rows that are read: :mod:`read_rows` (which), :mod:`fast_prefill` (eagerly),
  :mod:`fast_prefill_graph` (between the pieces of a graph), :mod:`short_graphs` (graphs of those layers);
- a second CUDA stream: :mod:`dense_beside_experts`.
"""
