"""Say that our attention kernel ran: ``TEST_INSTRUMENTS=kernel_counter:install``."""

import functools
from typing import Any


def install() -> None:
    """One line on the log for the first layer that the kernel took in each kind of step."""
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
