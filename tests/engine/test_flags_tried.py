"""Engines with many flags at once that should change no token: those of the groups with values in ``server_flags.toml``."""

import pytest

from sglang_gemma4.diagnostics import flag_table
from tests.harness.engine_fork import Nursery
from tests.harness.programs.flag_walk import Walk

TRIED = [group for group in flag_table.groups() if group.tried]


@pytest.mark.parametrize("group", TRIED, ids=lambda group: group.name)
def test_the_tokens_are_transformers(group: flag_table.Group, nursery: Nursery) -> None:
    walk = Walk(nursery)
    assert walk.answers("tiny-e2b", {**group.beside, **group.tried}, {}) == walk.tokens("tiny-e2b", "auto")


def test_a_sliding_pool_is_whole_pages(nursery: Nursery) -> None:
    """SGLang takes --max-total-tokens for it as it is, and finds a leak in the rest of a page as soon as it has nothing to do."""
    walk, pages = Walk(nursery), {"page_size": 64, "chunked_prefill_size": 64, "max_total_tokens": 1200, "disable_radix_cache": True}
    assert walk.answers("tiny-e2b", pages, {}) == walk.tokens("tiny-e2b", "auto")
