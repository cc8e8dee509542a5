"""An fp8 KV cache with scales on the CPU engine: ``TEST_INSTRUMENTS=calibrated_cache:install``, with
``--kv-cache-dtype fp8_e4m3``.

On a CPU SGLang supports fp8 only with AMX, whose layout it needs. Here the pool is a GPU's: float8 divided by each
layer's scales, and our attention multiplies by them again. A draft of requests whose rids begin with ``unscaled``
reads as stock's does: without scales.
"""

import functools
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

K_SCALE, V_SCALE = 1 / 16, 1 / 32
"""Far from 1, so that a reader without them sees other scores and other values; all values in the pool are far below
float8's 448."""


def allow() -> None:
    """Allow a GPU's fp8 pool on any CPU, without scales."""
    pools: Any = importlib.import_module("sglang.srt.mem_cache.kv_cache_configurator")
    pools.cpu_has_amx_support = lambda: True
    pools.attention_backends = lambda: ("intel_amx",)
    pools.KVCacheConfigurator._build_mha_quant_method = lambda *_, **__: None


def install() -> None:
    """As :func:`allow`; each layer of the target is given its scales when its weights are loaded."""
    allow()
    runner: Any = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner
    load = runner.load_model

    @functools.wraps(load)
    def load_model(self: Any) -> None:
        load(self)
        if not self.is_draft_worker:
            for layer in _attention(self.model):
                layer.k_scale, layer.k_scale_float = _parameter(K_SCALE), K_SCALE
                layer.v_scale, layer.v_scale_float = _parameter(V_SCALE), V_SCALE

    runner.load_model = load_model
    forward = runner.forward

    @functools.wraps(forward)
    def as_asked(self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.is_draft_worker or not forward_batch.rids[0].startswith("unscaled"):
            return forward(self, forward_batch, *args, **kwargs)
        with _unscaled(_attention(self.model)):
            return forward(self, forward_batch, *args, **kwargs)

    runner.forward = as_asked


def _attention(model: Any) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ == "RadixAttention"]


def _parameter(value: float) -> Any:
    torch: Any = importlib.import_module("torch")
    return torch.nn.Parameter(torch.tensor(value), requires_grad=False)


@contextmanager
def _unscaled(layers: list[Any]) -> Iterator[None]:
    names = ("k_scale", "v_scale", "k_scale_float", "v_scale_float")
    saved = [(layer, name, getattr(layer, name)) for layer in layers for name in names]
    for layer, name, _ in saved:
        setattr(layer, name, None)
    try:
        yield
    finally:
        for layer, name, value in saved:
            setattr(layer, name, value)
