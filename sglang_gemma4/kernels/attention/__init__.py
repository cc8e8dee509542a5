"""Attention over the KV pool, and the gathering of its keys and page tables.

:mod:`few_query_attention` serves verify, draft and decode steps, :mod:`prefill_attention` prompts. :mod:`limits`
checks their arguments and :mod:`tiles` chooses their tiles. :mod:`key_rows` gathers keys for attention kernels that
cannot read the pool, :mod:`page_rows` writes page tables, :mod:`step_metadata` the slots of a step.
"""
