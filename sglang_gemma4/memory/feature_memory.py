"""What image features on the card take comes out of the memory kept beside weights and KV, not out of KV.

With ``--mm-feature-transport cuda_ipc`` (patch ``image_transport``) the tokenizer's process has a CUDA context and a pool of features on
the card. Both are there before the weights are, and SGLang keeps the pool's bytes out of KV once more: 2.3 GiB fewer for KV at the same
``--mem-fraction-static`` than with features in the CPU's memory (26B-A4B on an H100 at 0.85: 14.5 for 16.8, run 2026-11-28-26b-h100-cells).
What is kept beside weights and KV, at 0.85 some 11.5 GiB, has room for them: KV gets them back, as far as the calculated reserve and
``reserve.MARGIN`` stay.
"""

from typing import Any

from sglang_gemma4.memory.reserve import GIB, MARGIN
from sglang_gemma4.patching import switches

NAME, SWITCH = "feature_memory", "SGLANG_GEMMA4_POOL_SIZES"
FRONT_END = 0.55 * GIB
"""The CUDA context of the tokenizer's process: 0.46 GiB on an H100 ("avail mem" beside "Load weight begin", run 2026-11-26-26b-h100-peer),
0.6 on an H200, of whose 2.36 GiB less at 0.85 it is the rest (68.377 to 66.016 GiB, runs 2026-11-22-26b-kernels-serve and
2026-11-24-26b-beside-vllm)."""
ON_CARD = "cuda_ipc"


def is_on() -> bool:
    """Whether this package gives KV back what features take."""
    return switches.part_is_on(NAME, SWITCH)


def given_back(pool: float, fraction: float, before: float, needed: float) -> float:
    """Bytes that KV gets back.

    Args:
        pool: of the features' pool.
        fraction: ``--mem-fraction-static``; of ``before``, the bytes that were free when weights began to load, it keeps 1 - fraction.
        needed: bytes of the calculated reserve (``Reserve.total``); they and ``reserve.MARGIN`` are not touched. The pool's bytes, which
            SGLang keeps for a process that has taken them already, count to what is kept.
    """
    kept = (1 - fraction) * before + pool
    return max(0.0, min(taken(pool, fraction), kept - needed - MARGIN))


def taken(pool: float, fraction: float) -> float:
    """Bytes that features on the card take of KV: SGLang gives KV its fraction of what is free, and keeps the pool once more."""
    return pool + fraction * (pool + FRONT_END)


def features_on_card(kvc: Any) -> bool:
    """Whether image features take memory of the card on the server of a ``KVCacheConfigurator``."""
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
    said = f"KV gets back {found / GIB:.1f} of the {taken(pool, fraction) / GIB:.1f} GiB that image features on the card take of it"
    return found, f"{said}: {kept / GIB:.1f} GiB stay beside weights and KV, where {need} are needed and {MARGIN / GIB:.0f} more are left"
