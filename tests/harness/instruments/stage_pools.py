"""Tell which layers' KV each pipeline stage holds: ``stage_pools:tell``, after ``gloo_ranks:install``; a line a stage in the log."""

import functools
import importlib
from typing import Any


def tell() -> None:
    """Print the ids of the layers that a pool of full and sliding layers is made for."""
    where: Any = importlib.import_module("sglang.srt.mem_cache.swa_memory_pool")
    original = where.SWAKVPool.__init__

    @functools.wraps(original)
    def telling(self: Any, *args: Any, swa_attention_layer_ids: Any, full_attention_layer_ids: Any, **kwargs: Any) -> None:
        from sglang.srt.runtime_context import get_parallel

        original(self, *args, swa_attention_layer_ids=swa_attention_layer_ids, full_attention_layer_ids=full_attention_layer_ids, **kwargs)
        print(f"STAGE {get_parallel().pp_rank}: sliding {swa_attention_layer_ids} full {full_attention_layer_ids}", flush=True)

    where.SWAKVPool.__init__ = telling
