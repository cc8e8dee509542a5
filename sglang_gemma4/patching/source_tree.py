"""Functions, classes and constants in a folder of SGLang's source, found by dotted name without importing anything."""

import ast
import functools
import hashlib
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_gemma4.patching.signature import signature_text

Function = ast.FunctionDef | ast.AsyncFunctionDef
Statement = Function | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Definition:
    """Where a name is defined: file from SGLang's folder, qualified name there, syntax node and dedented source."""

    path: str
    name: str
    node: Statement
    source: str

    def pinned(self, pins: str) -> str:
        """The text that a fingerprint covers: the whole source, or a function's signature alone."""
        return signature_text(self.source) if pins == "signature" and isinstance(self.node, Function) else self.source


def digest_of(text: str) -> str:
    """Fingerprint of a text: the first 12 hex digits of its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def installed_folder() -> Path | None:
    """The installed SGLang's own folder, or None. Finding a top-level package imports nothing."""
    spec = importlib.util.find_spec("sglang")
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


class SourceTree:
    """The source of one SGLang. ``folder`` is the package's own: it holds ``srt``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module_of(self, dotted: str) -> tuple[str, tuple[str, ...]] | None:
        """The file of the longest prefix that is a module, from SGLang's folder, and the names that are left; None outside SGLang."""
        first, *parts = dotted.split(".")
        if first != "sglang":
            return None
        for end in range(len(parts), -1, -1):
            base = "/".join(parts[:end])
            for path in (f"{base}.py", f"{base}/__init__.py".lstrip("/")):
                if path != ".py" and (self.folder / path).is_file():
                    return path, tuple(parts[end:])
        return None

    def find(self, dotted: str) -> list[Definition]:
        """Every definition that the name may have, the most likely one first; several if it depends on a condition."""
        return self._find(dotted, frozenset())

    def text(self, path: str) -> str:
        """One file's text, newlines as Python reads them."""
        return _text(f"{self.folder}/{path}")

    def tree(self, path: str) -> ast.Module:
        """One file's syntax tree."""
        return _parsed(f"{self.folder}/{path}")

    @functools.cached_property
    def _files(self) -> list[str]:
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.py"))

    def files(self) -> list[str]:
        """Every Python file, from SGLang's folder, sorted."""
        return self._files

    def elsewhere(self, names: Sequence[str]) -> list[Definition]:
        """Definitions of the same name in any file: of ``Class.method`` the whole name first, then the method under another class."""
        last = names[-1]
        found = []
        for path in self.files():
            if f"def {last}(" in (text := self.text(path)) or f"class {last}" in text:
                found += [self._definition(path, name, node) for name, node in _all(self.tree(path).body) if name.split(".")[-1] == last]
        whole = [each for each in found if each.name == ".".join(names)]
        return whole or ([] if last.startswith("__") else found)

    def registered(self, target: str, key: str) -> tuple[bool, list[Definition]]:
        """Whether a registry (a dict) is there, and what may stand under a key of it: in its literal, set by key, or by a decorator."""
        if target.endswith(".__dict__"):
            module = target.removesuffix(".__dict__")
            found = self.module_of(module)
            there = bool(found and not found[1] and key in self.text(found[0]))
            return there, self.find(f"{module}.{key}") if there else []
        at = self.find(target)
        return bool(at), list(dict.fromkeys(each for one in at for each in self._under(one, key)))

    def _under(self, registry: Definition, key: str) -> Iterator[Definition]:
        name = registry.name.split(".")[-1]
        for expression in _values(self.tree(registry.path), registry.node, name, key):
            yield from self._named(registry.path, expression, frozenset())
        for expression in _names_in(registry.node):  # {each.model_type: each for each in [...]}
            for one in self._named(registry.path, expression, frozenset()):
                if isinstance(one.node, ast.ClassDef) and any(_constant(each) == key for each in one.node.body):
                    yield one
        registrars = {name, *(each.name for _, each in _functions(self.tree(registry.path)) if name in ast.unparse(each))}
        decorated = re.compile(rf"^\s*@\w+\([^)]*[\"']{re.escape(key)}[\"']", re.MULTILINE)
        for path in self.files() if len(registrars) > 1 else ():
            if key in (text := self.text(path)) and decorated.search(text):
                yield from (self._definition(path, where, node) for where, node in self._decorated(path, registrars, key))

    def _decorated(self, path: str, registrars: set[str], key: str) -> Iterator[tuple[str, Function]]:
        """Functions of a file with a decorator, called with the key, that is one of the registrars or calls one."""
        for where, node in _functions(self.tree(path)):
            for each in node.decorator_list:
                if isinstance(each, ast.Call) and any(isinstance(one, ast.Constant) and one.value == key for one in each.args):
                    sources = [ast.unparse(each.func), *(found.source for found in self._named(path, each.func, frozenset()))]
                    if any(registrar in source for registrar in registrars for source in sources):
                        yield where, node

    def _find(self, dotted: str, seen: frozenset[str]) -> list[Definition]:
        found = self.module_of(dotted)
        if found is None or not found[1] or dotted in seen:
            return []
        path, names = found
        return self._in(path, self.tree(path).body, names, "", seen | {dotted})

    def _in(self, path: str, body: Sequence[ast.stmt], names: tuple[str, ...], scope: str, seen: frozenset[str]) -> list[Definition]:
        found: list[Definition] = []
        for node in reversed(list(_bindings(body, names[0]))):
            found += self._behind(path, node, names, scope, seen)
        if not found:
            for statement in body:
                if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
                    found += self._find(".".join((_from(path, statement), *names)), seen)
        return found

    def _behind(self, path: str, node: Statement, names: tuple[str, ...], scope: str, seen: frozenset[str]) -> list[Definition]:
        """What a statement that binds ``names[0]`` means for the whole name."""
        own = f"{scope}{names[0]}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            return self._find(".".join((_imported(path, node, names[0]), *names[1:])), seen)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            aliased = self._named(path, node.value, seen, names[1:]) if node.value is not None else []
            return aliased or ([self._definition(path, own, node)] if len(names) == 1 else [])
        if len(names) == 1:
            return [self._definition(path, own, node)]
        if not isinstance(node, ast.ClassDef):
            return []
        found = self._in(path, node.body, names[1:], f"{own}.", seen)
        for base in node.bases:
            found = found or self._named(path, base, seen, names[1:])
        return found

    def _named(self, path: str, expression: ast.expr, seen: frozenset[str], names: tuple[str, ...] = ()) -> list[Definition]:
        """What a name or a dotted name means in a module."""
        if not isinstance(expression, ast.Name | ast.Attribute):
            return []
        module = "sglang." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return self._find(".".join((module, ast.unparse(expression), *names)), seen)

    def _definition(self, path: str, name: str, node: Statement) -> Definition:
        decorators = getattr(node, "decorator_list", [])
        lines = self.text(path).splitlines(keepends=True)
        first = decorators[0].lineno if decorators else node.lineno
        whole = isinstance(node, Function | ast.ClassDef)
        # inspect.getsource, which fingerprints are made with, ends a function as getblock does.
        block = inspect.getblock(lines[first - 1 :]) if whole else lines[first - 1 : node.end_lineno]
        return Definition(path, name, node, textwrap.dedent("".join(block)))


@functools.cache
def _text(path: str) -> str:
    text = Path(path).read_text(encoding="utf-8")
    return text if text.endswith("\n") else text + "\n"


@functools.cache
def _parsed(path: str) -> ast.Module:
    return ast.parse(_text(path))


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of one scope, including those under if, try and with."""
    for node in body:
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            for part in ("body", "orelse", "finalbody"):
                yield from _flat(getattr(node, part, ()))
            for handler in getattr(node, "handlers", ()):
                yield from _flat(handler.body)


def _bindings(body: Iterable[ast.stmt], name: str) -> Iterator[Statement]:
    for node in _flat(body):
        if isinstance(node, Function):
            if node.name == name and not _is_setter(node):
                yield node
        elif isinstance(node, ast.ClassDef):
            if node.name == name:
                yield node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if any((each.asname or each.name) == name for each in node.names):
                yield node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                yield node


def _is_setter(node: Function) -> bool:
    """Whether it adds to a property of the same name, whose source is that of its getter."""
    return any(isinstance(each, ast.Attribute) and each.attr in ("setter", "deleter") for each in node.decorator_list)


def _all(body: Iterable[ast.stmt], scope: str = "") -> Iterator[tuple[str, Statement]]:
    for node in _flat(body):
        if isinstance(node, Function | ast.ClassDef):
            yield f"{scope}{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from _all(node.body, f"{scope}{node.name}.")


def _functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    return ((name, node) for name, node in _all(tree.body) if isinstance(node, Function))


def _from(path: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = ["sglang", *path.split("/")[:-1]]
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def _imported(path: str, node: ast.Import | ast.ImportFrom, name: str) -> str:
    alias = next(each for each in node.names if (each.asname or each.name) == name)
    return f"{_from(path, node)}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name


def _values(tree: ast.Module, registry: Statement, name: str, key: str) -> Iterator[ast.expr]:
    """A key's values in a dict's literal, and those set by ``name[key] = ...``."""
    literal = getattr(registry, "value", None)
    if isinstance(literal, ast.Dict):
        pairs = zip(literal.keys, literal.values, strict=True)
        yield from (value for at, value in pairs if isinstance(at, ast.Constant) and at.value == key)
    for node in _flat(tree.body):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"{name}[{key!r}]":
            yield node.value


def _names_in(registry: Statement) -> Iterator[ast.Name]:
    value = getattr(registry, "value", None)
    if isinstance(value, ast.DictComp):
        yield from (each for each in ast.walk(value.generators[0].iter) if isinstance(each, ast.Name))


def _constant(node: ast.stmt) -> object:
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return value.value if isinstance(value, ast.Constant) else None
