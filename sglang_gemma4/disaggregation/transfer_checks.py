"""Hooks for prefill and decode on separate servers."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Seam, decline, hooks


def recurrent_hidden(original: Callable[[Any, Any], Any], model_config: Any, algorithm: Any) -> Any:
    """Around ``get_draft_recurrent_hidden_state_spec_from_config``: width and dtype of the state that a draft step passes to the next."""
    width, dtype = original(model_config, algorithm)
    if not algorithm.is_frozen_kv_mtp():
        return width, dtype
    return int(getattr(model_config.hf_config, "backbone_hidden_size", width)), dtype


def without_draft_pool(_queue: Any, *args: Any, **kwargs: Any) -> Any:
    """Before the queues' constructors, called by keywords: drop a frozen-KV draft's pool, whose 64 slots hold nothing to send."""
    if kwargs["scheduler"].spec_algorithm.is_frozen_kv_mtp():
        kwargs["draft_token_to_kv_pool"] = None
    return (_queue, *args), kwargs


SGLANG = "sglang.srt.disaggregation"

NIXL = f"{SGLANG}.nixl.conn.NixlKVManager"

MOONCAKE = f"{SGLANG}.mooncake.conn.MooncakeKVManager"

OURS = "sglang_gemma4.disaggregation"

MANAGERS = {
    "nixl": (
        Seam(f"{NIXL}._init_hetero_tp_prep_handle", "around", f"{OURS}.nixl:prepare_full", "deb063ecf196"),
        Seam(f"{NIXL}._prepare_state_xfer", "after", f"{OURS}.nixl:prepare_sliding", "67cdd9fc6dbe"),
        Seam(f"{NIXL}._add_remote_peer", "around", f"{OURS}.nixl:add_peer", "28128a3ac40b"),
        Seam(f"{NIXL}.send_kvcache", "around", f"{OURS}.nixl:send_equal", "906882742054"),
        Seam(f"{NIXL}.send_kvcache_slice", "around", f"{OURS}.nixl:send_full", "283b7bf45dd3"),
        Seam(f"{NIXL}._send_swa_state_slice", "around", f"{OURS}.nixl:send_sliding", "b2b1ab5c90fe"),
    ),
    "mooncake": (
        Seam(f"{MOONCAKE}._validate_peer_state_layout", "around", f"{OURS}.mooncake:check_peer", "8283d77b8ccd"),
        Seam(f"{MOONCAKE}.send_kvcache_slice", "around", f"{OURS}.mooncake:send_full", "d1b99f16efc6"),
        Seam(f"{MOONCAKE}._send_swa_state_slice", "around", f"{OURS}.mooncake:send_sliding", "bcec6e09be8c"),
        Seam(f"{MOONCAKE}.maybe_send_extra", "around", f"{OURS}.mooncake:cut_state", "e939935d1194"),
    ),
}
"""Hooks of each backend's manager. A manager's module is imported only when a server uses it: Mooncake's imports prometheus_client,
which decides on import whether the processes of a server count together."""

_hooked: set[str] = set()


def hook_manager(transfer_backend: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``get_kv_class``, which every disaggregated server calls: hook the manager of ``transfer_backend``, once."""
    name = str(getattr(transfer_backend, "value", transfer_backend))
    if name not in MANAGERS or name in _hooked:
        return
    _hooked.add(name)
    try:
        failed = hooks.install([[hooks.prepare(hook) for hook in MANAGERS[name]]])
    except hooks.PatchError as error:
        failed = {0: str(error)}
    if failed:
        decline("hetero_tp", f"servers of different --tp-size over {name}: {failed[0]}")
