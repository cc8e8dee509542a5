"""A running request holds one sliding window, not two: its prompt's last window does not stay locked in the radix tree beside its own."""

from dataclasses import dataclass

from sglang_gemma4 import patching

NAME = "own_window"


@dataclass
class Counts:
    """What was done in this process (a scheduler's) since it started."""

    taken_back: int = 0  # times a running request took its prompt's last nodes out of the tree
    taken_tokens: int = 0  # tokens of those nodes
    unlocked: int = 0  # times the lock on a prompt's sliding window ended because the request's window had passed the prompt
    refused: int = 0  # times a request was asked to take its nodes and could not: they have children or another reader


COUNTS = Counts()


def one_window_reason_against() -> str | None:
    """Why a running request of this server may hold two sliding windows, or None if one can be assumed.

    Answered from the patch's state and SGLang's resolved arguments alone, so pools may be sized by it before there is a scheduler.
    Without a radix cache a request never holds more than one window, whatever the state of the patch.
    """
    from sglang.srt.runtime_context import get_memory

    if get_memory().disable_radix_cache:
        return None
    outcome = next((one for one in patching.report() if one.name == NAME), None)
    if outcome is None or outcome.state in ("off", "failed", "declined"):
        return f"{NAME} is {'not in this process' if outcome is None else f'{outcome.state} ({outcome.reason})'}"
    return server_problem()


def server_problem() -> str | None:
    """Why nodes of this server's radix tree cannot go back to running requests, by SGLang's resolved arguments; or None."""
    from sglang.srt.runtime_context import get_disagg, get_memory, get_parallel, get_serving

    memory, parallel = get_memory(), get_parallel()
    if get_disagg().disaggregation_mode != "null":
        return "prefill and decode are on servers of their own"
    if memory.enable_unified_memory:
        return "--enable-unified-memory: both pools share their slots"
    tiers = {
        "--enable-hierarchical-cache": memory.enable_hierarchical_cache,
        "--enable-unified-cache-external-linker": memory.enable_unified_cache_external_linker,
        "--enable-lmcache": memory.enable_lmcache,
        "--enable-flexkv": memory.enable_flexkv,
        "--enable-hisparse": memory.enable_hisparse,
    }
    tier = next((flag for flag, given in tiers.items() if given), None)
    if tier is not None:
        return f"{tier}: a node that leaves the device's tree may have a copy on the host"
    if memory.radix_cache_backend:
        return f"--radix-cache-backend {memory.radix_cache_backend}: its tree is not SGLang's"
    if memory.enable_session_radix_cache:
        return "--enable-session-radix-cache: nodes belong to sessions"
    if get_serving().enable_streaming_session:
        return "--enable-streaming-session: a session's slot holds the lock of its turns"
    for what, size in (("pipeline", parallel.pp_size), ("context", parallel.attn_cp_size), ("decode context", parallel.attn_dcp_size)):
        if size > 1:
            return f"{what} parallel over {size} ranks"
    return None
