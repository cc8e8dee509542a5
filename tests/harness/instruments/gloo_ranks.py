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
