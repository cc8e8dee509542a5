"""MTP on SGLang's unified memory (``--enable-unified-memory``): the frozen draft reads the target's pages through the
target's tables.

One buffer holds the pages of full and of sliding layers, and its split moves with the load. A request's row names
virtual slots. Two tables, one for full and one for sliding layers, say where a slot's page is at present. SGLang
fuses a draft that owns KV into the target's pages, and gives any other draft a pool as large as the virtual space. A
frozen draft needs neither: it writes nothing and reads the target's own pages. So its unused pool stays at the 64
slots that its worker asks for, nothing is fused, and its runner translates by the target's tables.
"""

from collections.abc import Callable, Iterator
from typing import Any

from sglang_gemma4.patching.arguments import SeenAs

ALGORITHM = "FROZEN_KV_MTP"
BACKENDS = ("triton",)
"""Attention backends that were checked with the draft: they read through the translator of the runner on every path
of the draft."""


def problems(resolved: Any, backends: tuple[str | None, ...], own: tuple[str, ...] = ()) -> Iterator[str]:
    """What MTP with unified memory does not support, each with its remedy.

    Args:
        resolved: the server's resolved arguments.
        backends: names of the prefill and of the decode backend.
        own: names of this package's CPU backends, if the process has them.
    """
    flag = "--enable-unified-memory with MTP"
    draft = resolved.speculative_draft_attention_backend
    wrong = [each for each in (*backends, draft) if each is not None and each not in (*BACKENDS, *own)]
    if wrong:
        yield f"{flag}: the draft translates its slots on {', '.join(BACKENDS)} only, not on {wrong[0]}; use --attention-backend triton"
    if resolved.disaggregation_mode != "null":
        yield f"{flag}: --disaggregation-mode {resolved.disaggregation_mode} was never tried; leave one of the two away"
    if resolved.enable_hierarchical_cache:
        yield f"{flag}: --enable-hierarchical-cache was never tried; leave one of the two away"


def accept_draft(server_args: Any, previous: Callable[[Any], None], own: tuple[str, ...] = ()) -> None:
    """A wrapper of the resolution step ``handle_unified_memory_pool``, which refuses every draft but EAGLE's, DFLASH's and DSPARK's.

    SGLang's other conditions are still checked.

    Raises:
        PreflightError: one of :func:`problems`.
    """
    from sglang.srt.arg_groups.model_override_base import attention_backends_of, resolved_view

    from sglang_gemma4.models.config_files import PreflightError

    resolved = resolved_view(server_args)
    if not resolved.enable_unified_memory or resolved.speculative_algorithm != ALGORITHM:
        previous(server_args)
        return
    for problem in problems(resolved, attention_backends_of(resolved), own):
        raise PreflightError(problem)
    previous(SeenAs(server_args, speculative_algorithm=None))


def nothing_fused(original: Callable[[Any], Any], configurator: Any) -> Any:
    """Around ``KVCacheConfigurator._fused_draft_decision``: a frozen draft has no KV to lay into the target's pages."""
    if not configurator.spec_algorithm.is_frozen_kv_mtp():
        return original(configurator)
    from sglang.srt.mem_cache.layout.fused_draft import FusedDraftDecision

    return FusedDraftDecision()


def no_placement(original: Callable[[Any], Any], configurator: Any) -> Any:
    """Around ``KVCacheConfigurator._fused_draft_for_swa_factory``, which refuses a draft of EAGLE's kind that is not fused."""
    return None if configurator.spec_algorithm.is_frozen_kv_mtp() else original(configurator)


def own_small_pool(original: Callable[..., Any], configurator: Any, **given: Any) -> Any:
    """Around ``KVCacheConfigurator._init_pools``: keep the draft's unused pool at the size that its worker asked for.

    SGLang would give it a slot for each of the target's virtual ones. The pool gets an allocator of its own, from
    which no one takes slots; the draft's runner keeps the target's, as in a server without unified memory.
    """
    from sglang.srt.mem_cache.allocator.unified_hybrid_swa import UnifiedSWAAllocatorBase

    target = given["token_to_kv_pool_allocator"]
    frozen = configurator.is_draft_worker and configurator.spec_algorithm.is_frozen_kv_mtp()
    if not frozen or not isinstance(target, UnifiedSWAAllocatorBase):
        return original(configurator, **given)
    import msgspec

    pools = original(configurator, **given | {"token_to_kv_pool_allocator": None})
    return msgspec.structs.replace(pools, token_to_kv_pool_allocator=target)


def translate_as_target(worker: Any) -> None:
    """Give the draft the target's translator of slots, before the draft's attention backends are built.

    Backends, batches and graphs of the draft take the translator from its runner. The translator of the draft's own
    pool would pass virtual slots on as they are.
    """
    target = worker.target_worker.model_runner.kv_index_translator
    if target.is_translating:
        worker.model_runner.kv_index_translator = target


def read_plan(runner: Any, batch: Any) -> Any:
    """The ``KVLocPlan`` of a draft over ``batch``, which reads and does not write; None where slots need no translation.

    Without it SGLang translates the slots that ``batch`` was last written to, for a batch that does not write.
    """
    translator = runner.kv_index_translator
    if not translator.is_translating:
        return None
    return translator.plan(
        req_pool_indices=batch.req_pool_indices, seq_lens=batch.seq_lens, seq_lens_cpu=batch.seq_lens_cpu, write_virtual=None
    )
