"""Values that no server starts with: each example of ``server_flags.toml`` ends an engine with its one line, before weights are loaded."""

import pytest

from sglang_gemma4.diagnostics import flag_table
from sglang_gemma4.diagnostics.flag_table import Refused
from sglang_gemma4.tiny import checkpoints
from tests.harness.engine_fork import EngineFailed, Group, Nursery

TARGET = checkpoints.SHIPPED / flag_table.MODEL
HERE = [example for example in flag_table.refused() if not example.gpu]


@pytest.mark.parametrize("example", HERE, ids=lambda example: f"{example.by} {flag_table.typed(example.given)}")
def test_one_line_before_weights(example: Refused, nursery: Nursery) -> None:
    with pytest.raises(EngineFailed) as error:
        nursery.run(TARGET, [Group([[2, 300]])], None, 60.0, **example.arguments(str(TARGET)))
    said = str(error.value).split("\n--- end of", 1)[0].strip().splitlines()[-1]
    assert said.replace(str(TARGET), "MODEL").partition(": ")[2].startswith(example.line)
    assert example.by == "sglang" or "PreflightError" in said
    log = (nursery.log_folder / f"case{nursery.cases}.log").read_text()
    assert "Load weight begin" not in log
