"""Bytes per token of an EAGLE-3 draft's KV.

SGLang counts each draft layer as one of the target's full layers, whatever its heads are. On E2B, E4B and 12B a draft
of 8 heads of 128 takes twice the bytes of such a layer, and the pools would be larger than their budget.
"""

from typing import Any


def price(sizes: Any, kvc: Any) -> None:
    """Count the draft's own pool, one slot for each full token, by the draft's config, as SGLang does for DFlash.

    Args:
        sizes: a ``HybridSWAPoolConfigurator`` that has counted the draft's layers; those in a fused pool are no longer
        among them.
        kvc: the target's ``KVCacheConfigurator``.
    """
    aux = kvc.spec_aux_config
    layers = sizes._draft_full_layers_num
    if not kvc.spec_algorithm.is_eagle3() or not layers or aux.draft_model_config is None:
        return
    from sglang.srt.mem_cache.draft_kv_budget import resolve_dflash_draft_cell_size

    cell = resolve_dflash_draft_cell_size(
        draft_model_config=aux.draft_model_config, draft_num_layers=layers, attn_tp_size=kvc.draft_attn_tp_size
    )
    if cell is not None:
        sizes._draft_full_layers_num, sizes._draft_cell_size = 0, cell
        sizes._recompute_cell_size()
