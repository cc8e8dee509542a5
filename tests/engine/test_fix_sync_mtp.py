"""MTP under the synchronous scheduler loop, in real engines."""

from pathlib import Path
from typing import Any

import pytest

from crash_repro import case
from tests.engine import text_only
from tests.engine.engine_fork import EngineFailed, Nursery, Output, run_engine

MTP: dict[str, Any] = {
    "disable_overlap_schedule": True,
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_num_draft_tokens": 4,
    "speculative_eagle_topk": 1,
}


def serve(nursery: Nursery, model: Path, draft: Path, **env: str) -> list[Output]:
    return run_engine(
        nursery,
        model=model,
        prompts=case.PROMPTS,
        sampling={"max_new_tokens": case.TOKENS},
        env=env,
        speculative_draft_model_path=draft,
        **MTP,
    )


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_only.save(case.assistant_model(), tmp_path_factory.mktemp("assistant"), sglang_names=False)


def test_tokens_of_plain_decoding(nursery: Nursery, draft: Path, tmp_path: Path) -> None:
    model = case.text_model()
    answers = serve(nursery, text_only.save(model, tmp_path), draft)
    assert [answer.token_ids for answer in answers] == case.greedy(model)
    assert all(answer.meta_info["spec_verify_ct"] > 0 for answer in answers)


def test_stock_ends_at_the_first_batch(nursery: Nursery, draft: Path, tmp_path: Path) -> None:
    path = text_only.save(case.text_model(), tmp_path)
    with pytest.raises(EngineFailed, match="unexpected keyword argument 'pp_proxy_tensors'"):
        serve(nursery, path, draft, SGLANG_GEMMA4_SYNC_MTP="0")
