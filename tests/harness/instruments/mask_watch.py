"""Our verify kernel takes nothing, and SGLang's says whether it was given a mask: ``TEST_INSTRUMENTS=mask_watch:install``."""

import importlib
from typing import Any


def install() -> None:
    """Wrap the backend's extend forward, where the metadata of the step are read."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    verify: Any = importlib.import_module("sglang_gemma4.attention.verify")
    verify.few_query_reason = lambda *_args, **_more: "a test"
    attend: Any = TritonAttnBackend.forward_extend

    def watched(self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if forward_batch.forward_mode.is_target_verify():
            print("VERIFIED", "without" if self.forward_metadata.custom_mask is None else "with", "a mask", flush=True)
        return attend(self, q, k, v, layer, forward_batch, *args, **kwargs)

    TritonAttnBackend.forward_extend = watched  # type: ignore[method-assign]
