"""The list of extended tests: each line names tests that exist."""

import ast
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
