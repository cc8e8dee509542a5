"""Attention over the KV pool, its keys and its page tables.

:mod:`few_query_attention` for verify, draft and decode steps, :mod:`prefill_attention` for prompts; :mod:`limits` and :mod:`tiles` say what
both take and how they are laid out. :mod:`key_rows` gathers keys for attention kernels that read no pool, :mod:`page_rows` writes page
tables.
"""
