"""Say that the kernel for few rows ran: ``TEST_INSTRUMENTS=few_row_counter:install``."""

import functools
from typing import Any


def install() -> None:
    """One line on the log for the first plain and the first gated product."""
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
