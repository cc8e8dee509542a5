"""The MTP draft, which owns no KV, costs no share of the KV pools."""

from typing import Any

from sglang_gemma4.memory import kv_layers
from sglang_gemma4.patching import Hook, Patch, uses

MODULE = "sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state"


def charge_no_draft(_result: None, *, config: Any, spec_algorithm: Any, is_draft_worker: bool, **_kwargs: Any) -> None:
    """After SGLang has counted the draft's layers for the target's pool sizing."""
    if is_draft_worker or not spec_algorithm.is_frozen_kv_mtp() or not config.eagle_draft_num_layers:
        return
    # The draft reads the target's KV; its worker allocates a pool of only 64 tokens, outside the static memory. The unified pool's fused
    # draft alone reads draft_kv_num_layers (unified_draft).
    layers, sliding = int(config.eagle_draft_num_layers), int(config.eagle_draft_swa_num_layers or 0)
    kv_layers.uncharged[:] = layers - min(sliding, layers), min(sliding, layers)  # what SGLang's sizes would have been, for swa_sizing
    config.eagle_draft_num_layers, config.eagle_draft_swa_num_layers = 0, None


PATCH = Patch(
    switch="SGLANG_GEMMA4_POOL_SIZES",
    why="FROZEN_KV_MTP counts as EAGLE, so its draft's layers are priced as KV of the target's size, though its pool has 64 tokens: "
    "8% of 26B-A4B's capacity at ratio 0.8, 24% at 0.15.",
    evidence="srt/speculative/spec_info.py:102 · srt/model_executor/pool_configurator.py:733-759 · frozen_kv_mtp_worker_v2.py:194",
    remove_when="pool_configurator.py leaves FROZEN_KV_MTP out of the draft layers it counts.",
    uses=(uses.mtp,),
    hooks=(Hook(f"{MODULE}._resolve_eagle_aux_hidden_state", "after", charge_no_draft, "38b66d834462"),),
)
