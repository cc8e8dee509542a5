"""If SGLang's own --mem-fraction-static leaves no KV pool for one request, the calculated reserve is kept instead.

SGLang keeps about a quarter of an 80 GB GPU (``reserve``), and 31B's weights in bfloat16 take more than the rest. The
start then ends with "Loaded weights leave no GPU memory for the KV cache", though less than 7 GiB are needed beside the
weights. The outcome is known once the weights are loaded, so a fraction that leaves a pool is not touched. Nor is one
that the operator gave.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.runtime_context import get_context, get_schedule

from sglang_gemma4.memory import given, reserve_settings
from sglang_gemma4.memory.reserve import GIB
from sglang_gemma4.memory.swa_sizing import REFERENCE

SOURCE = "sglang_gemma4.memory_reserve"

in_force = False
"""Whether this process sizes its pools by the calculated reserve."""


class WeightsTooLargeError(ValueError):
    """The weights leave no KV pool, by SGLang's rule and by the calculated reserve."""


def size_pools(size: Callable[[], Any], kvc: Any, before: float) -> tuple[Any, str]:
    """What ``size`` gives, if need be with the calculated reserve, and the line for the log.

    The line is empty if SGLang's fraction stays in force.

    Args:
        size: ``_resolve_memory_pool_config`` of ``kvc``, SGLang's ``KVCacheConfigurator``. It returns a
            ``MemoryPoolConfig`` by the fraction in force.
        before: GiB that were free before the weights were loaded, the minimum over all ranks.

    Raises:
        WeightsTooLargeError: neither leaves a pool.
    """
    global in_force
    found, problem = _tried(size)
    least = _least_tokens(kvc)
    tokens = 0 if found is None else _tokens(kvc, found)
    if tokens >= least or _stands(kvc):
        if found is None:
            raise problem
        return found, ""
    stock, need = get_schedule().mem_fraction_static, reserve_settings.needed(kvc.server_args)
    fraction = int(1000 * (1 - need.total / (before * GIB))) / 1000
    by_rule = f"SGLang's --mem-fraction-static {stock:g}, which keeps {(1 - stock) * before:.1f} of {before:.1f} GiB"
    few = "leaves no KV pool beside the weights" if found is None else f"leaves {tokens} tokens, fewer than one request's {least}"
    again, second = None, f"they are more than the {before:.1f} GiB of the GPU"
    if fraction > 0:
        get_context().override(SOURCE, mem_fraction_static=fraction)
        in_force = True
        again, error = _tried(size)
        second = str(error)
    if again is not None and _tokens(kvc, again) > tokens:
        said = f"--mem-fraction-static {fraction:g} in place of {by_rule} and {few}: kept beside weights and KV are {need}"
        return again, f"{said}; the full pool holds {_tokens(kvc, again)} tokens"
    in_force = False
    get_context().override(SOURCE, mem_fraction_static=stock)
    if found is not None:
        return found, ""
    raise WeightsTooLargeError(
        f"{by_rule}, {few}, and neither does what is calculated to be needed ({need}): {second}. Take quantised weights "
        "(docs/quantised.md), a larger --tp-size, a smaller --chunked-prefill-size or --max-running-requests, "
        "--mm-feature-transport cpu, or --language-model-only; a --mem-fraction-static of yours stands whatever it leaves"
    ) from problem


def _tried(size: Callable[[], Any]) -> tuple[Any, Exception]:
    """The pools, or None and why there are none: weights leave nothing, or one pool holds less than a window."""
    try:
        return size(), ValueError()
    except (ValueError, RuntimeError) as error:
        return None, error


def _tokens(kvc: Any, found: Any) -> int:
    """Tokens of the full pool, across ranks that share one."""
    return int(kvc.logical_token_capacity(max_total_num_tokens=found.max_total_num_tokens))


def _least_tokens(kvc: Any) -> int:
    """Tokens that the full pool must hold: a request of the length that the operator names, or of :data:`REFERENCE`."""
    args, context = kvc.server_args, int(kvc.model_config.context_len)
    wanted = args.context_length or min(given.request_tokens() or REFERENCE, context)
    return min(wanted, args.max_total_tokens or wanted)


def _stands(kvc: Any) -> bool:
    """Whether the fraction in force stays, whatever it leaves.

    It does if the operator asked for it, or if no reserve can be calculated for such a server.
    """
    args = kvc.server_args
    return given.reserve_gib() is not None or reserve_settings.reason_against(args, args.mem_fraction_static) is not None
