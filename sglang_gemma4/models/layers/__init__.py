"""Code that computes a layer's result instead of SGLang's.

- norms, residuals, layer tails: :mod:`decoder_layer`; dense GEMMs and gated FFN: :mod:`few_row_linear`;
- attention's inputs: :mod:`qkv_rope` (norms and RoPE), :mod:`kv_write` (into the KV pool), :mod:`shared_query` and
  :mod:`fresh_kv` (layers that share KV);
- mixture of experts: :mod:`router` (its scale), :mod:`router_choice` (GEMM and choice), :mod:`expert_layers`,
  :mod:`expert_tiles`;
- LM heads: :mod:`draft_head` (MTP's draft), :mod:`sharded_head` (split over ranks).
"""
