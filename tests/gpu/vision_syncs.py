"""Let packed images fail where they wait for the card: ``TEST_INSTRUMENTS=tests.gpu.vision_syncs:install``."""

import functools
from typing import Any


def install() -> None:
    """PyTorch raises at a call that waits, from the second batch on: the first compiles kernels."""
    import torch

    from sglang_gemma4.models import vision

    encode, batches = vision.encode, 0

    @functools.wraps(encode)
    def watched(model: Any, pictures: Any) -> Any:
        nonlocal batches
        batches += 1
        torch.cuda.set_sync_debug_mode("error" if batches > 1 else "default")
        try:
            return encode(model, pictures)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            if batches == 2:
                print(f"ENCODED {len(pictures)} pictures without waiting", flush=True)

    vision.encode = watched
