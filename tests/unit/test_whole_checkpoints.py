"""Each checkpoint variant's verdict by its files' headers: whole, or refused in one line that names tensors and remedy."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sglang")

from sglang_gemma4.checkpoint import PreflightError
from sglang_gemma4.models.checkpoint_arrival import check_files
from tests.checkpoint_variants import VARIANTS, write


@pytest.mark.parametrize("name", VARIANTS)
def test_the_verdict(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    folder = write(name, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    towers = not variant.text_only
    if variant.refused is None or "pickled" in name:  # no headers: judged as the tensors arrive
        check_files(str(folder), config, towers)
        return
    with pytest.raises(PreflightError) as refused:
        check_files(str(folder), config, towers)
    assert re.search(variant.refused, str(refused.value)), refused.value
    assert "\n" not in str(refused.value)
    assert variant.finish is not None or str(refused.value).endswith("set SGLANG_GEMMA4_WITHOUT=whole_checkpoints")
