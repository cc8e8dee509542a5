"""The FROZEN_KV_MTP worker pair: views of the target's KV, drafts, the draft's graph and length."""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sglang_gemma4.memory import kv_layers
from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import decline, is_on, note, switches
from sglang_gemma4.patching.switches import MTP_V2
from sglang_gemma4.speculative import frozen_chain

logger = logging.getLogger(__name__)


def switch_overlap_off(server_args: Any, previous: Callable[[Any], None]) -> None:
    """A wrapper of SGLang's resolution step after which the algorithm is known: switch overlap off for the worker v1."""
    from sglang.srt.arg_groups.model_override_base import resolved_view
    from sglang.srt.arg_groups.overrides import declare_resolution

    previous(server_args)
    resolved = resolved_view(server_args)
    if resolved.speculative_algorithm != "FROZEN_KV_MTP" or resolved.disable_overlap_schedule:
        return
    declare_resolution(server_args, "sglang_gemma4.worker_v1", disable_overlap_schedule=True)
    logger.warning("sglang-gemma4: overlap scheduling is off: %s=0 selects the MTP worker v1, which is synchronous", MTP_V2)


def choose_worker(original: Callable[[Any, Any], Any], algorithm: Any, server_args: Any) -> Any:
    """Around ``create_worker``, which returns the worker's class."""
    found = original(algorithm, server_args)
    if not algorithm.is_frozen_kv_mtp():
        return found
    from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPWorkerV2

    if found is not FrozenKVMTPWorkerV2:
        decline("worker_v1", f"the platform has an MTP worker of its own, {found.__name__}")
        return found
    from sglang_gemma4.speculative.worker_v1 import FrozenKVMTPWorkerV1

    return FrozenKVMTPWorkerV1


@contextmanager
def metadata_view(worker: Any, forward_batch: Any) -> Iterator[None]:
    """Replaces ``_frozen_kv_target_view``: metadata for the target's committed prefix, as of a plain decode."""
    spec_info, forward_batch.spec_info = forward_batch.spec_info, None
    try:
        with pool_view(worker, forward_batch):
            yield
    finally:
        forward_batch.spec_info = spec_info


def pool_view(worker: Any, _forward_batch: Any) -> AbstractContextManager[None]:
    """Replaces ``_target_kv_pool_view``: context for the draft's forward on the target's KV."""
    from sglang_gemma4.speculative import views

    view: AbstractContextManager[None] = views.target_view(worker.draft_attn_backend, _target_pool(worker))
    return view


def _target_pool(worker: Any) -> Any:
    if worker.kv_context is None:
        raise RuntimeError("the MTP draft runs before its model was bound to the target's KV pool; bind_frozen_kv_context comes first")
    return worker.kv_context.target_token_to_kv_pool


def capture_in_view(original: Callable[..., None], runner: Any, worker: Any) -> None:
    """Around ``FrozenKVMTPCudaGraphRunner.__init__``: buffers that a graph binds are allocated for the target's pool, not the draft's."""
    with pool_view(worker, None):
        original(runner, worker)


def prepare_backend(backend: Any, worker: Any) -> None:
    """After ``FrozenKVMTPDraftWorker._init_draft_attn_backend``, whose backend reads the target's KV."""
    if is_on("frozen_views"):
        refuse_unknown(backend, worker)  # first: it may end the start
    if is_on("draft_graph"):
        choose(backend, worker)


def refuse_unknown(backend: Any, worker: Any) -> None:
    """End the start if no adapter gives ``backend`` the target's KV."""
    from sglang_gemma4.speculative import views

    views.swaps(backend, _target_pool(worker))


def share_scales(_result: None, worker: Any) -> None:
    """After ``_bind_kv_context``: a calibrated KV cache is descaled by the scales of the layer that wrote it."""
    from sglang_gemma4.speculative import views

    views.share_all_kv_scales(worker)


SHARDED = "SGLANG_GEMMA4_SHARDED_HEAD"


def prepare_draft(_result: None, worker: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``FrozenKVMTPDraftWorker.alloc_memory_pool``: prepare what the draft's backends and graphs are built
    with."""
    if is_on("unified_draft"):
        from sglang_gemma4.speculative import unified_pool

        unified_pool.translate_as_target(worker)
    if is_on("frozen_chain"):
        frozen_chain.make_chain(worker)
    if is_on("draft_argmax"):
        give_head(worker)  # behind frozen_chain, which says whether the draft needs tokens only


def give_head(worker: Any) -> None:
    """Install the head that returns the draft's token, before anything is captured."""
    model = worker.draft_model_runner.model
    if not getattr(model, frozen_chain.TOKENS_ONLY, False):
        decline("draft_argmax", "the draft needs logits: frozen_chain is off, or drafts are trees")
        return
    if reason := looks_at_logits():
        decline("draft_argmax", reason)
        return
    from sglang_gemma4.models.layers import draft_head

    draft_head.install(model, partial(note, "draft_argmax"), sharded=switches.is_on(SHARDED))


def looks_at_logits() -> str | None:
    """Why SGLang needs the draft's logits whatever they are for, or None."""
    from sglang.srt.environ import envs

    if envs.SGLANG_ENABLE_NAN_LOGITS_CHECK.get() or envs.SGLANG_ENABLE_ASYNC_ASSERT.get():
        return "SGLang is asked to look for NaN in the draft's logits"
    return None


IN_GRAPH = "_sglang_gemma4_metadata_in_graph"


def choose(backend: Any, worker: Any) -> None:
    """Mark a backend that can prepare its metadata within the draft's graph."""
    from sglang_gemma4.attention import graph_metadata

    reason = graph_metadata.reason_against(backend, worker.topk)
    if reason:
        decline("draft_graph", f"{reason}: the draft's metadata stays outside its graph")
        return
    setattr(backend, IN_GRAPH, True)


def capture_metadata(_result: None, backend: Any, forward_batch: Any) -> None:
    """After ``init_forward_metadata_in_graph``, which is called while a graph is captured, on the tensors it will be replayed with."""
    if getattr(backend, IN_GRAPH, False):
        backend.init_forward_metadata_out_graph(forward_batch)


def replayed_with_graph(original: Callable[..., None], worker: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``_init_frozen_kv_metadata_replay_cuda_graph``: the graph does it."""
    if not getattr(worker.draft_attn_backend, IN_GRAPH, False):
        original(worker, *args, **kwargs)


NONE = "_sglang_gemma4_no_recurrent_states"


def commit(original: Callable[..., None], target_worker: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``commit_mamba_states_after_verify``, which has nothing to do for a Gemma 4."""
    runner = target_worker.model_runner
    if NONE not in vars(runner):
        setattr(runner, NONE, named_gemma4(runner.model_config.hf_config))
    if not getattr(runner, NONE):
        original(target_worker, *args, **kwargs)


def unsupported_reason(original: Callable[[Any], str | None], server_args: Any) -> str | None:
    """Around ``adaptive_unsupported_reason``: for FROZEN_KV_MTP, keep every reason except the algorithm's name, and
    add that of the worker v1."""
    from sglang.srt.arg_groups.overrides import resolving_view

    if resolving_view(server_args).speculative_algorithm != "FROZEN_KV_MTP":
        return original(server_args)
    if not switches.is_on(switches.MTP_V2):
        return f"{switches.MTP_V2}=0 selects the MTP worker v1, whose draft length is fixed"
    as_eagle = copy.copy(server_args)
    declared = list(getattr(server_args, "_resolved_overrides", None) or ())
    as_eagle._resolved_overrides = [*declared, ("sglang_gemma4.adaptive_draft", {"speculative_algorithm": "EAGLE"})]
    return original(as_eagle)


def default_config(server_args: Any) -> None:
    """Before ``_init_adaptive_speculative_params``: SGLang's default lengths are those of its own policy."""
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    from sglang_gemma4 import speculative

    given = resolving_view(server_args)
    if given.speculative_algorithm == "FROZEN_KV_MTP" and given.speculative_adaptive_config is None:
        path = Path(speculative.__file__).parent / "adaptive_draft.json"
        declare_resolution(server_args, "sglang_gemma4.adaptive_draft", speculative_adaptive_config=str(path))


def charge_no_draft(_result: None, *, config: Any, spec_algorithm: Any, is_draft_worker: bool, **_kwargs: Any) -> None:
    """After SGLang has counted the draft's layers for the target's pool sizing."""
    if is_draft_worker or not spec_algorithm.is_frozen_kv_mtp() or not config.eagle_draft_num_layers:
        return
    # The draft reads the target's KV; its worker allocates a pool of only 64 tokens, outside the static memory. The unified pool's fused
    # draft alone reads draft_kv_num_layers (unified_draft).
    layers, sliding = int(config.eagle_draft_num_layers), int(config.eagle_draft_swa_num_layers or 0)
    kv_layers.uncharged[:] = layers - min(sliding, layers), min(sliding, layers)  # what SGLang's sizes would have been, for swa_sizing
    config.eagle_draft_num_layers, config.eagle_draft_swa_num_layers = 0, None
