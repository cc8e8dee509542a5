"""Text-only checkpoints as transformers saves them, served by real engines."""

from pathlib import Path

import pytest

from crash_repro import case
from tests.engine import text_only
from tests.engine.engine_fork import EngineFailed, Nursery, run_engine

GREEDY = {"max_new_tokens": case.TOKENS}


@pytest.mark.parametrize("family", ["tiny-31b", "tiny-e2b", "tiny-26b-a4b"])
def test_same_tokens_as_transformers(family: str, nursery: Nursery, tmp_path: Path) -> None:
    model = case.text_model(family)
    path = text_only.save(model, tmp_path, sglang_names=False)
    answers = run_engine(nursery, model=path, prompts=case.PROMPTS, sampling=GREEDY)
    assert [answer.token_ids for answer in answers] == case.greedy(model)


def test_sglangs_own_names_go_on_working(nursery: Nursery, tmp_path: Path) -> None:
    model = case.text_model()
    path = text_only.save(model, tmp_path, sglang_names=True)
    answers = run_engine(nursery, model=path, prompts=case.PROMPTS, sampling=GREEDY)
    assert [answer.token_ids for answer in answers] == case.greedy(model)


def test_stock_does_not_load_them(nursery: Nursery, tmp_path: Path) -> None:
    path = text_only.save(case.text_model(), tmp_path, sglang_names=False)
    with pytest.raises(EngineFailed, match="AmbiguousGlobalPerLayerAttributeError"):
        run_engine(nursery, model=path, prompts=case.PROMPTS, env={"SGLANG_GEMMA4_TEXT_ONLY_CONFIG": "0"})
