"""Scales of a quantised KV cache that a release of memory loses, that a move forgets, or that the pools' sizes leave out."""

import importlib
from typing import Any


def install() -> None:
    """Fill scales with NaN at a resume; before the first write after it the log says how many scales are still NaN."""
    import torch
    from sglang.srt.utils.torch_memory_saver_adapter import _TorchMemorySaverAdapterNoop

    pool: Any = importlib.import_module("sglang_gemma4.attention.quantised_pool").PerTokenHeadPool
    create, write, adapter = pool._create_buffers_normal, pool.set_kv_buffer, _TorchMemorySaverAdapterNoop
    made: list[Any] = []
    resumed = False

    def scales() -> list[Any]:
        return [each for one in made for each in (*one.k_scale_buffer, *one.v_scale_buffer)]

    def created(self: Any) -> None:
        create(self)
        made.append(self)

    def resume(_self: Any, tag: str) -> None:
        nonlocal resumed
        if tag == "kv_cache":
            for each in scales():
                each.fill_(float("nan"))
            resumed = True

    def written(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal resumed
        if resumed:
            resumed = False
            lost = sum(int(torch.isnan(each).sum()) for each in scales())
            print(f"SCALES: {lost} of {len(scales())} tensors' are no numbers", flush=True)
        write(self, *args, **kwargs)

    pool._create_buffers_normal, pool.set_kv_buffer, adapter.resume = created, written, resume


def left_behind() -> None:
    """Moving quantised values from slot to slot leaves their scales behind."""
    import torch

    pool: Any = importlib.import_module("sglang_gemma4.attention.quantised_pool").PerTokenHeadPool
    move = pool._move_kv_cache_impl

    def moved(self: Any, to: Any, source: Any) -> None:
        scales = [*self.k_scale_buffer, *self.v_scale_buffer]
        before = [each.clone() for each in scales]
        move(self, to, source)
        torch._foreach_copy_(scales, before)

    pool._move_kv_cache_impl = moved


def uncounted() -> None:
    """Size pools as if quantised values had no scales. Named first: it acts before the patches are placed."""
    formats: Any = importlib.import_module("sglang_gemma4.memory.kv_formats")
    formats.count_scales = lambda _result, _sizes, _configurator: None
