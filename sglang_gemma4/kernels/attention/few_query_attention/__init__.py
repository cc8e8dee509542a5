"""Attention of a few query tokens per request over a long paged KV cache: verify, draft and decode steps.

One program takes all query tokens of a request and all query heads of one KV head as the rows of one tile, and a part of the keys; a
second kernel joins the parts. So each key is read once for all of its queries, and a small batch still fills the card. How many parts a
request is cut into follows from its length on the device; the host knows only their largest number.

Query tokens of a verify step see the keys in the cache (``kv_indices``) and each other's (``k_new``), these by the tree's mask or, without
one, causally. Draft and decode steps have one query token, whose own key is in the cache already.
"""

from sglang_gemma4.kernels.attention.few_query_attention.launch import few_query_attention, few_query_attention_reference

__all__ = ["few_query_attention", "few_query_attention_reference"]
