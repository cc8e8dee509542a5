"""The experts of a MoE layer, by the number of tokens.

Routing: :mod:`routed_product` (the router's product and its choice) or :mod:`expert_routing` (the choice alone) for up to 16 tokens,
:mod:`expert_blocks` for any. Products: :mod:`few_token_experts` for up to 16 tokens and :mod:`grouped_experts` for some hundred, both
beginning with :mod:`gated_experts`; :mod:`prefill_experts` for a prefill chunk. ``moe_tiles`` are tiles of SGLang's own kernels.
"""
