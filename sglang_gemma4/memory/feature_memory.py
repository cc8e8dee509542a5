"""Charges image features on the GPU to the memory kept beside weights and KV, not to KV.

With ``--mm-feature-transport cuda_ipc`` (patch ``image_transport``) the tokenizer process has a CUDA context and a pool
of features on the GPU. Both exist before the weights are loaded, and SGLang subtracts the pool's bytes from KV again.
On 26B-A4B (H100, ``--mem-fraction-static`` 0.85) KV gets 14.5 GiB instead of the 16.8 with features in CPU memory (run
2026-11-28-26b-h100-cells). The memory kept beside weights and KV, some 11.5 GiB at 0.85, has room for both. KV gets
their bytes back as long as the calculated reserve and ``reserve.MARGIN`` remain.
"""

from typing import Any

from sglang_gemma4.memory.reserve import GIB, MARGIN
from sglang_gemma4.patching import switches

NAME, SWITCH = "feature_memory", "SGLANG_GEMMA4_POOL_SIZES"
FRONT_END = 0.55 * GIB
"""The CUDA context of the tokenizer process: 0.46 GiB on an H100 and 0.6 GiB on an H200.

H100: "avail mem" beside "Load weight begin" (run 2026-11-26-26b-h100-peer). H200: the rest of the 2.36 GiB that KV has
less at 0.85 (runs 2026-11-22-26b-kernels-serve and 2026-11-24-26b-beside-vllm).
"""
ON_CARD = "cuda_ipc"


def is_on() -> bool:
    """Whether this package gives KV back what features take."""
    return switches.part_is_on(NAME, SWITCH)


def given_back(pool: float, fraction: float, before: float, needed: float) -> float:
    """Bytes that KV gets back.

    Args:
        pool: bytes of the feature pool.
        fraction: ``--mem-fraction-static``; SGLang keeps 1 - fraction of ``before``.
        before: bytes that were free when weights began to load.
        needed: bytes of the calculated reserve (``Reserve.total``). They and ``reserve.MARGIN`` are not touched. The
            pool's bytes, which SGLang keeps for a process that has taken them already, count as kept.
    """
    kept = (1 - fraction) * before + pool
    return max(0.0, min(taken(pool, fraction), kept - needed - MARGIN))


def taken(pool: float, fraction: float) -> float:
    """Bytes that KV loses to features on the GPU.

    SGLang gives KV its fraction of what is free, and subtracts the pool again.
    """
    return pool + fraction * (pool + FRONT_END)


def features_on_card(kvc: Any) -> bool:
    """Whether image features take GPU memory on the server of a ``KVCacheConfigurator``."""
    from sglang.srt.runtime_context import get_mm

    return bool(kvc.model_config.is_multimodal) and get_mm().mm_feature_transport == ON_CARD


def reason_against(args: Any) -> str | None:
    """Why KV gets nothing back on a server with these arguments, or None."""
    from sglang.srt.environ import envs

    from sglang_gemma4.memory import given, reserve_fallback

    if given.reserve_gib() is not None or reserve_fallback.in_force:
        return f"{switches.RESERVE_GIB} or the calculated reserve says what is kept"
    if envs.SGLANG_ENABLE_POST_CAPTURE_KV_SIZING.get():
        return "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING sizes KV by what is free after graphs are captured"
    if args.pp_size > 1 or args.nnodes > 1 or args.attn_dp_size > 1 or args.enable_dp_attention:
        return "only tensor parallelism on one machine is calculated"
    return None


def of_server(kvc: Any, before: float) -> tuple[float, str]:
    """Bytes that KV of this server gets back, and the line for the log.

    Args:
        before: bytes that were free when weights began to load.
    """
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_schedule

    from sglang_gemma4.memory import reserve_settings

    pool = float(envs.SGLANG_MM_FEATURE_CACHE_MB.get()) * 2**20
    fraction, need = get_schedule().mem_fraction_static, reserve_settings.needed(kvc.server_args)
    found = given_back(pool, fraction, before, need.total)
    kept = (1 - fraction) * before + pool - found
    said = f"KV gets back {found / GIB:.1f} of the {taken(pool, fraction) / GIB:.1f} GiB that image features on the GPU take of it"
    return found, f"{said}: {kept / GIB:.1f} GiB stay beside weights and KV, where {need} are needed and {MARGIN / GIB:.0f} more are left"
