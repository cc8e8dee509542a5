"""Modules of the package import each other downwards and never in a circle, imports inside functions counted."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import sglang_gemma4

NAME = "sglang_gemma4"
PACKAGE = Path(sglang_gemma4.__file__).parent

# From the bottom up: folders, and modules that stand elsewhere than their folder. Modules at the top of the package that are not named
# here are of "base", which every layer may import.
LAYERS = (
    ("base", "patching", "tiny", "start", "checkpoint", "diagnostics.text_geometry"),
    ("kernels",),
    ("attention",),
    ("models",),
    ("speculative", "memory", "disaggregation", "cpu"),
    ("diagnostics", "serving"),  # what patches put into the server: checks, traps, states, parsers
    ("patches",),
    ("plugin",),
    # Those of diagnostics read the list of patches.
    ("benchmark", "quality", "start.measure", *(f"diagnostics.{name}" for name in ("doctor", "listing", "targets", "upgrade"))),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def _modules() -> dict[str, Path]:
    """Every module of the package, patches included, by its dotted name."""
    roots = [(PACKAGE, NAME), (PACKAGE / "patches", f"{NAME}.patches")]  # a link in a checkout, which rglob does not follow
    found = {}
    for root, prefix in roots:
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join((prefix, *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return found


def _imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Dotted names that a module imports, with lines; those for type checkers only are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import; write {NAME}. in full"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        yield from _imports(node)


def _graph(modules: dict[str, Path]) -> dict[str, dict[str, int]]:
    """For each module the others that it imports, each with the line of its first import."""
    graph: dict[str, dict[str, int]] = {}
    for module, path in modules.items():
        imported = graph[module] = {}
        for name, line in _imports(ast.parse(path.read_text())):
            target = next((one for one in (name, name.rpartition(".")[0]) if one in modules), NAME)
            if target not in (NAME, module):
                imported.setdefault(target, line)
    return graph


def _rank(module: str) -> int:
    """Of a module's layer.

    Raises:
        KeyError: its folder is in no layer.
    """
    inside = module.removeprefix(f"{NAME}.")
    folder, dot, _ = inside.partition(".")
    if dot and folder not in RANK:
        raise KeyError(f"{module}: give the folder {folder!r} its place in LAYERS")
    return RANK.get(inside, RANK.get(folder, RANK["base"]))


def _upwards(graph: dict[str, dict[str, int]]) -> list[str]:
    return [
        f"{module}, line {line}: {other} is of a higher layer"
        for module, imported in graph.items()
        for other, line in imported.items()
        if _rank(module) < _rank(other)
    ]


def test_no_circle() -> None:
    graph = _graph(_modules())
    assert sum(map(len, graph.values())) > 100
    TopologicalSorter(graph).prepare()  # CycleError names the circle


def test_imports_point_down() -> None:
    assert _upwards(_graph(_modules())) == []


def test_a_circle_and_an_import_upwards_are_found(tmp_path: Path) -> None:
    low, high = f"{NAME}.kernels.low", f"{NAME}.models.high"
    modules = {low: tmp_path / "low.py", high: tmp_path / "high.py"}
    modules[low].write_text(f"def later():\n    from {NAME}.models import high\n")
    modules[high].write_text(f"from {NAME}.kernels.low import later\n")
    graph = _graph(modules)
    with pytest.raises(CycleError, match=low):
        TopologicalSorter(graph).prepare()
    assert _upwards(graph) == [f"{low}, line 2: {high} is of a higher layer"]
    with pytest.raises(KeyError, match="give the folder 'rooms' its place"):
        _rank(f"{NAME}.rooms.one")
