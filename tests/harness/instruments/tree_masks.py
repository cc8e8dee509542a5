"""EAGLE's tree masks on the CPU engine."""

import importlib
from typing import Any


def full() -> None:
    """Use whole masks as on a GPU, a row of prefix and draft for each draft token. The triton backend misreads SGLang's CPU masks."""
    worker: Any = importlib.import_module("sglang.srt.speculative.eagle_worker_v2")
    tree: Any = importlib.import_module("sglang.srt.speculative.eagle_utils")
    worker.default_tree_mask_mode = lambda: tree.TreeMaskMode.FULL_MASK


def say() -> None:
    """Have SGLang's kernel verify every step instead of ours, and print whether it was given a mask."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    verify: Any = importlib.import_module("sglang_gemma4.attention.verify")
    verify.reason_against_few_query = lambda *_args, **_more: "a test"
    attend: Any = TritonAttnBackend.forward_extend

    def watched(self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if forward_batch.forward_mode.is_target_verify():
            print("VERIFIED", "without" if self.forward_metadata.custom_mask is None else "with", "a mask", flush=True)
        return attend(self, q, k, v, layer, forward_batch, *args, **kwargs)

    TritonAttnBackend.forward_extend = watched  # type: ignore[method-assign]
