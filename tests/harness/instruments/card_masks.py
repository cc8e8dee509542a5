"""EAGLE's tree masks as on a card: ``TEST_INSTRUMENTS=card_masks:install``. SGLang's CPU masks are intel_amx's, which triton misreads."""

import importlib
from typing import Any


def install() -> None:
    """Whole masks, a row of prefix and draft for each draft token."""
    worker: Any = importlib.import_module("sglang.srt.speculative.eagle_worker_v2")
    tree: Any = importlib.import_module("sglang.srt.speculative.eagle_utils")
    worker.default_tree_mask_mode = lambda: tree.TreeMaskMode.FULL_MASK
