"""Several ranks on a CPU, over gloo: ``gloo_ranks:install``. SGLang makes an NCCL communicator on every platform it knows."""

import functools
import importlib
from typing import Any


def install() -> None:
    """No NCCL in any group of this process and its children."""
    where: Any = importlib.import_module("sglang.srt.distributed.parallel_state")
    original = where.GroupCoordinator.__init__

    @functools.wraps(original)
    def without_nccl(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, "use_pynccl": False})

    where.GroupCoordinator.__init__ = without_nccl
    runner: Any = importlib.import_module("sglang.srt.model_executor.model_runner")
    runner.adjust_config_with_unaligned_cpu_tp = lambda model_config, *_args: model_config  # our heads divide


def tell_stage_pools() -> None:
    """Print for each pipeline stage the ids of the layers that its pool of full and sliding layers holds."""
    where: Any = importlib.import_module("sglang.srt.mem_cache.swa_memory_pool")
    original = where.SWAKVPool.__init__

    @functools.wraps(original)
    def telling(self: Any, *args: Any, swa_attention_layer_ids: Any, full_attention_layer_ids: Any, **kwargs: Any) -> None:
        from sglang.srt.runtime_context import get_parallel

        original(self, *args, swa_attention_layer_ids=swa_attention_layer_ids, full_attention_layer_ids=full_attention_layer_ids, **kwargs)
        print(f"STAGE {get_parallel().pp_rank}: sliding {swa_attention_layer_ids} full {full_attention_layer_ids}", flush=True)

    where.SWAKVPool.__init__ = telling
