"""Prefill and decode servers (--disaggregation-mode) may have different --tp-size."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch, decline, hooks, uses

SGLANG = "sglang.srt.disaggregation"
NIXL = f"{SGLANG}.nixl.conn.NixlKVManager"
MOONCAKE = f"{SGLANG}.mooncake.conn.MooncakeKVManager"
OURS = "sglang_gemma4.disaggregation"

MANAGERS = {
    "nixl": (
        Hook(f"{NIXL}._init_hetero_tp_prep_handle", "around", f"{OURS}.nixl:prepare_full", "deb063ecf196"),
        Hook(f"{NIXL}._prepare_state_xfer", "after", f"{OURS}.nixl:prepare_sliding", "67cdd9fc6dbe"),
        Hook(f"{NIXL}._add_remote_peer", "around", f"{OURS}.nixl:add_peer", "28128a3ac40b"),
        Hook(f"{NIXL}.send_kvcache", "around", f"{OURS}.nixl:send_equal", "906882742054"),
        Hook(f"{NIXL}.send_kvcache_slice", "around", f"{OURS}.nixl:send_full", "283b7bf45dd3"),
        Hook(f"{NIXL}._send_swa_state_slice", "around", f"{OURS}.nixl:send_sliding", "b2b1ab5c90fe"),
    ),
    "mooncake": (
        Hook(f"{MOONCAKE}._validate_peer_state_layout", "around", f"{OURS}.mooncake:check_peer", "8283d77b8ccd"),
        Hook(f"{MOONCAKE}.send_kvcache_slice", "around", f"{OURS}.mooncake:send_full", "d1b99f16efc6"),
        Hook(f"{MOONCAKE}._send_swa_state_slice", "around", f"{OURS}.mooncake:send_sliding", "bcec6e09be8c"),
        Hook(f"{MOONCAKE}.maybe_send_extra", "around", f"{OURS}.mooncake:cut_state", "e939935d1194"),
    ),
}
"""Hooks of a backend's manager. Its module is imported when a server asks for it, not when the package is loaded: Mooncake's imports
prometheus_client, which decides then whether the processes of a server count together."""
_hooked: set[str] = set()


def hook_manager(transfer_backend: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``get_kv_class``, which every disaggregated server calls: hook that backend's manager, once."""
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


PATCH = Patch(
    switch="SGLANG_GEMMA4_MODEL_FIXES",
    why="Stock applies the full layers' number of KV heads to the sliding ones: of 12 unequal pairs of sizes in 1, 2, 4, 8 it serves 2 for "
    "26B-A4B. NIXL also counts no group of heads where KV heads are fewer than prefill ranks, and keeps one source for all decode sizes.",
    evidence="srt/disaggregation/prefill.py:336 · common/conn.py:1751 · nixl/conn.py:1302, 1328 · mooncake/conn.py:2157",
    remove_when="tests/engine/test_hetero_tp.py passes with SGLANG_GEMMA4_WITHOUT=hetero_tp.",
    uses=(uses.disaggregation,),
    hooks=(
        Hook(f"{SGLANG}.utils.setup_state_kv_args", "after", f"{OURS}.peers:keep_heads", "51324cc29389"),
        Hook(f"{SGLANG}.decode.DecodePreallocQueue._ensure_prefill_info", "around", f"{OURS}.peers:refuse_servers", "1f7463508300"),
        Hook(f"{SGLANG}.utils.get_kv_class", "before", hook_manager, "b70ba18e22ea"),
    ),
)
