"""A real engine's log says which of its pools holds requests back."""

import re

import pytest

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import Group, Nursery

PROMPTS = [[2, *((7 * i + 31 * n) % 700 + 300 for i in range(60))] for n in range(12)]
WATCH = {"TEST_INSTRUMENTS": "device_memory:bound_lines", "SGLANG_SWA_EVICTION_INTERVAL": "1"}


@pytest.mark.parametrize(
    ("pool", "sizes"),
    [
        ("sliding", {"max_total_tokens": 3000, "swa_full_tokens_ratio": 0.14}),
        ("full", {"max_total_tokens": 500, "swa_full_tokens_ratio": 1.0}),
    ],
)
def test_the_log_says_which_pool_is_too_small(nursery: Nursery, pool: str, sizes: dict[str, float]) -> None:
    group = Group(PROMPTS, {"max_new_tokens": 90})
    engine = {"max_running_requests": 12, "chunked_prefill_size": 64, **sizes}
    log = nursery.run(resolve("tiny-26b-a4b"), [group], env=WATCH, **engine)[0][0].log
    found = re.findall(r"the (\w+) KV pool holds requests back: .* full pool (\d+)% and for the sliding pool (\d+)% of the time", log)
    assert found, log[-3000:]
    assert found[0][0] == pool
    shares = {"full": int(found[0][1]), "sliding": int(found[0][2])}
    assert shares[pool] > 30, shares
    assert re.search(r"they are \d+ tokens long on average", log)
