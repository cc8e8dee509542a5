"""A card that weights have all but filled, told to a CPU engine: ``TEST_INSTRUMENTS=full_card:install``.

What SGLang measures before and after the weights is told; its profiling, its default fraction, the pools and the requests are real.
"""

from typing import Any

BEFORE, LEFT = 80.0, 5.0
"""GiB free before the weights and after."""


def install() -> None:
    from sglang.srt.distributed import bootstrap
    from sglang.srt.mem_cache import kv_cache_configurator

    from sglang_gemma4.memory import reserve_settings

    sglang: Any = bootstrap
    sglang.measure_pre_model_load_memory = lambda **_: BEFORE
    profiled: Any = kv_cache_configurator
    profiled.get_available_gpu_memory = lambda *_, **__: LEFT
    against = reserve_settings.reason_against

    def reason_against(server_args: Any, typed: float | None) -> str | None:
        reason = against(server_args, typed)
        return None if reason == "the device is cpu, not a CUDA card" else reason

    reserve_settings.reason_against = reason_against
