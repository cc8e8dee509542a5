"""The experts of an MoE layer, by the number of tokens.

Routing: :mod:`routed_product` (router GEMM and top-k) or :mod:`expert_routing` (top-k only) for up to 16 tokens,
:mod:`expert_blocks` for any number. GEMMs: :mod:`few_token_experts` for up to 16 tokens and :mod:`grouped_experts`
for up to some hundred, both beginning with :mod:`gated_experts`; :mod:`prefill_experts` for a prefill chunk.
``moe_tiles`` holds tiles of SGLang's own kernels.
"""
