"""SGLang's unified memory: one buffer for full and sliding layers, with a split that moves. Tokens are those of two pools, MTP or not.

Real engines of a model with a window of 64 tokens, with SGLang's pool checks fatal in every step and when idle.
"""

import re
from typing import Any

import pytest

from tests.engine.engine_fork import Nursery, Output
from tests.engine.test_one_window import LARGE, LOOPS, large, retractions, serve, tokens_are_equal

SMALL = {"enable_unified_memory": True, "max_total_tokens": 1800, "swa_full_tokens_ratio": 0.4}
"""Memory for 1,800 full and 720 sliding tokens, shared by eight requests of 150 to 450 tokens."""


def shared(nursery: Nursery, loop: str, **engine: Any) -> dict[str, list[Output]]:
    sabotage, options, env = LOOPS[loop]
    return serve(nursery, sabotage, {**LARGE, **SMALL, **options, **engine}, env)


@pytest.mark.parametrize(("loop", "page"), [("plain", 1), ("plain-overlapped", 16), ("mtp", 16), ("mtp-overlapped", 1), ("mtp-retracted", 1)])
def test_tokens_are_those_of_two_large_pools(loop: str, page: int, nursery: Nursery) -> None:
    """Chunked prefills, turns that hit the radix tree, aborts, four answers of one prompt, logprobs and a grammar; requests are retracted."""
    found = shared(nursery, loop, page_size=page)
    tokens_are_equal(found, large(nursery))
    log = found["turns"][0].log
    assert "UNIFIED MEMORY POOL ENABLED" in log
    assert re.search(r"^TAKEN", log, re.MULTILINE), "running requests gave back their prompts' windows"
    assert ("unified_draft" in log) is False, "nothing was declined"
    assert any(output.meta_info["cached_tokens"] for output in found["turns"]), "turns hit the tree"
    print(loop, page, {name: retractions(found, name) for name in found})
