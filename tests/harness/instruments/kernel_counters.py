"""Instruments that print a line when a kernel or a layer's path was taken; a function for each."""

import functools
from typing import Any


def attention() -> None:
    """Print a line for the first layer that our attention kernel took in each kind of step."""
    from sglang_gemma4.attention.decode import DecodeAttention
    from sglang_gemma4.attention.prefill import PrefillAttention
    from sglang_gemma4.attention.quantised import READERS, ReadsLevels
    from sglang_gemma4.attention.verify import VerifyAttention

    for name in ("forward_extend", "forward_decode"):
        counted = telling(getattr(ReadsLevels, name), "READ LEVELS of")
        for reader in (ReadsLevels, *READERS.values()):
            setattr(reader, name, counted)
    for kind, word in ((VerifyAttention, "VERIFIED"), (DecodeAttention, "DECODED"), (PrefillAttention, "PREFILLED")):
        kind.__call__ = telling(kind.__call__, word)  # type: ignore[method-assign]


def telling(original: Any, word: str) -> Any:
    from sglang_gemma4.kernels.attention import few_query_attention

    @functools.wraps(original)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if self.steps == 1:
            print(f"{word} a layer{', parts balanced' if few_query_attention._balanced else ''}", flush=True)
        return result

    return counted


def few_rows() -> None:
    """Print a line for the first plain and the first gated product of the few-row linear kernel."""
    from sglang_gemma4.models.layers import few_row_linear

    module: Any = few_row_linear
    original: Any = module.few_row_linear
    said: set[bool] = set()

    @functools.wraps(original)
    def announced(*args: Any, gated: bool = False, **kwargs: Any) -> Any:
        if gated not in said:
            said.add(gated)
            print(f"FEW ROWS, {'gated' if gated else 'plain'}.", flush=True)
        return original(*args, gated=gated, **kwargs)

    module.few_row_linear = announced


def read_back() -> None:
    """Print after each verify step of the target in how many layers SGLang's triton backend read keys back."""
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


def dequantised() -> None:
    """Print the outputs and inputs of each linear layer that the CPU reference engine dequantised."""
    from sglang_gemma4.cpu import quantised

    module: Any = quantised
    finish = module._finish_linear

    def announced(layer: Any, weight: Any, rounding: Any) -> None:
        finish(layer, weight, rounding)
        print(f"QUANTISED {weight.shape[0]} x {weight.shape[1]}.", flush=True)

    module._finish_linear = announced
