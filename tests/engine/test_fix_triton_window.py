"""SGLang's Triton attention under Triton's interpreter, in float32, against transformers.

The key that stock loses is shown by ``crash_repro/triton_window.py``.
"""

from pathlib import Path
from typing import Any

import pytest

from crash_repro import case
from tests.harness.checkpoints import text_only
from tests.harness.engine_fork import Nursery, run_engine


def serve(nursery: Nursery, path: Path, tokens: int = case.TOKENS, env: dict[str, str] | None = None, **engine: Any) -> list[list[int]]:
    options = {"attention_backend": "triton", "time_limit": 300.0, **engine}
    answers = run_engine(nursery, model=path, prompts=case.PROMPTS, sampling={"max_new_tokens": tokens}, env=env, **options)
    return [answer.token_ids for answer in answers]


@pytest.mark.parametrize("family", ["tiny-31b", "tiny-26b-a4b"])  # the E2B-like one is below
def test_same_tokens_as_transformers(family: str, interpreting: Nursery, tmp_path: Path) -> None:
    model = case.text_model(family)
    assert serve(interpreting, text_only.save(model, tmp_path)) == case.greedy(model)


@pytest.mark.parametrize("radix", [True, False])
def test_the_oldest_key_is_still_in_the_pool(radix: bool, interpreting: Nursery, tmp_path: Path) -> None:
    """Sliding slots are freed at every step: with one key too many freed, decode would read a stranger's."""
    model = case.text_model("tiny-e2b")
    path = text_only.save(model, tmp_path)
    env = {"SGLANG_SWA_EVICTION_INTERVAL": "1"}
    assert serve(interpreting, path, env=env, disable_radix_cache=not radix) == case.greedy(model)
