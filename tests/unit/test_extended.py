"""The list of extended tests: each line names tests that exist."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import EXTENDED, ROOT


@pytest.mark.parametrize("line", EXTENDED)
def test_a_line_names_a_test(line: str) -> None:
    path, _, name = line.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert not name or name.partition("[")[0] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_list_is_in_order() -> None:
    assert list(EXTENDED) == sorted(set(EXTENDED))
    assert all(Path(line.partition("::")[0]).suffix == ".py" for line in EXTENDED)


def test_files_that_pytest_collects_together_have_names_of_their_own() -> None:
    names = Counter(path.name for folder in ("unit", "engine", "gpu") for path in (ROOT / "tests" / folder).glob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == [], "pytest would not collect the second"
