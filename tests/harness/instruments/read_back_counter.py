"""Say in how many layers of a verify step SGLang's triton backend reads keys back: ``TEST_INSTRUMENTS=read_back_counter:install``."""

import functools
from typing import Any


def install() -> None:
    """One line on the log for each verify step of the target, once it is done."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.models.gemma4_causal import Gemma4TextModel

    attend: Any = TritonAttnBackend.forward_extend
    model: Any = Gemma4TextModel.forward
    read = 0

    @functools.wraps(attend)
    def counted(self: Any, q: Any, k: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal read
        read += k is None
        return attend(self, q, k, *args, **kwargs)

    @functools.wraps(model)
    def said(self: Any, input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal read
        read = 0
        result = model(self, input_ids, positions, forward_batch, *args, **kwargs)
        if forward_batch.forward_mode.is_target_verify():
            print(f"VERIFY STEP: {read} layers read back.", flush=True)
        return result

    TritonAttnBackend.forward_extend = counted  # type: ignore[method-assign]
    Gemma4TextModel.forward = said  # type: ignore[method-assign]
