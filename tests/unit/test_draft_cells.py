"""An EAGLE-3 draft's share of the KV pools: its own layers' bytes, not those of the target's full layers."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.memory import draft_cells


class Sizes:
    """As much of ``HybridSWAPoolConfigurator`` as is priced: E2B's full layers of 2,048 bytes a token, and a draft of one layer."""

    def __init__(self, layers: int = 1) -> None:
        self._draft_full_layers_num, self._draft_cell_size, self.cell = layers, 0, 0

    def _recompute_cell_size(self) -> None:
        self.cell = 2048 * (3 + self._draft_full_layers_num) + self._draft_cell_size


def kvc(algorithm: str = "EAGLE3") -> Any:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    draft = SimpleNamespace(get_num_kv_heads=lambda ranks: 8 // ranks, head_dim=128, v_head_dim=128, dtype=torch.bfloat16)
    return SimpleNamespace(
        spec_algorithm=SpeculativeAlgorithm[algorithm], spec_aux_config=SimpleNamespace(draft_model_config=draft), draft_attn_tp_size=2
    )


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.mem_cache import draft_kv_budget

    monkeypatch.setattr(draft_kv_budget, "get_model", lambda: SimpleNamespace(kv_cache_dtype="auto"))
    given = SimpleNamespace(speculative_draft_kv_cache_dtype=None, speculative_draft_attention_backend="triton")
    monkeypatch.setattr(draft_kv_budget, "get_spec", lambda: given)


@pytest.mark.usefixtures("resolved")
def test_a_draft_costs_its_own_bytes() -> None:
    sizes = Sizes()
    draft_cells.price(sizes, kvc())
    assert sizes._draft_cell_size == 4 * (128 + 128) * 2  # heads of a rank, keys and values, bytes
    assert sizes._draft_full_layers_num == 0
    assert sizes.cell == 2048 * 3 + 2048


@pytest.mark.usefixtures("resolved")
@pytest.mark.parametrize(("algorithm", "layers"), [("EAGLE3", 0), ("FROZEN_KV_MTP", 1), ("DFLASH", 0)])
def test_other_drafts_are_left_alone(algorithm: str, layers: int) -> None:
    sizes = Sizes(layers)
    draft_cells.price(sizes, kvc(algorithm))
    assert (sizes._draft_full_layers_num, sizes._draft_cell_size) == (layers, 0)
