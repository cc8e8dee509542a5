"""What computes a layer's result in place of SGLang's code.

- norms, residuals, layer tails: :mod:`decoder_layer`; dense products and gated FFN: :mod:`few_row_linear`;
- attention's inputs: :mod:`qkv_rope` (norms and rotation), :mod:`kv_write` (into the KV pool), of layers that share KV
  :mod:`shared_query` and :mod:`fresh_kv`;
- mixture of experts: :mod:`router` (its scale), :mod:`router_choice` (product and choice), :mod:`expert_layers`, :mod:`expert_tiles`;
- LM heads: :mod:`draft_head` (MTP's draft), :mod:`sharded_head` (split over ranks).
"""
