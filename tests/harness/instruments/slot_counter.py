"""How many steps of an engine allocate KV slots: ``TEST_INSTRUMENTS`` names ``watch``, after what makes the loop (``loop_modes``).

A line ``SLOTS {"requests": …, "needed": …}`` for each MTP step: 0 needed where the step's preparation allocates none.
"""

import importlib
import json
import re
from typing import Any

MARK = "SLOTS "


def watch() -> None:
    """Wrap the preparation of a step, outside the patches, and the allocation inside it."""
    eagle: Any = importlib.import_module("sglang.srt.speculative.eagle_utils")
    dispatch: Any = importlib.import_module("sglang.srt.speculative.spec_utils")
    prepare, allocate, needed = dispatch.spec_prepare_for_decode, eagle.alloc_for_spec_decode, [0]

    def allocating(*args: Any, **kwargs: Any) -> None:
        needed[0] = kwargs["num_needed_tokens"]
        allocate(*args, **kwargs)

    def preparing(batch: Any) -> None:
        needed[0] = 0
        before = [req.decode_batch_idx for req in batch.reqs]
        prepare(batch)
        assert [req.decode_batch_idx for req in batch.reqs] == [index + 1 for index in before]
        print(MARK + json.dumps({"requests": len(batch.reqs), "needed": needed[0]}), flush=True)

    dispatch.spec_prepare_for_decode, eagle.alloc_for_spec_decode = preparing, allocating


def read(log: str) -> list[dict[str, int]]:
    """The steps in order."""
    return [json.loads(line) for line in re.findall(rf"{MARK}(\{{.*\}})", log)]
