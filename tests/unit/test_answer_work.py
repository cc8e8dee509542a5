"""The answer parser's work is linear in the answer: the characters that its code searches, compares and copies are counted.

No clock: the parser's modules are run from their own source, in which each operation on text is replaced by one that counts.
"""

import ast
import functools
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4 import serving
from tests.harness.inputs import answers
from tests.harness.inputs.answers import STRING

MODULES = (
    *("markers", "call_heads", "arguments_json", "bare_values", "argument_strings", "bare_arguments", "tool_arguments"),
    *("string_ends", "answer_parts", "answer"),
)
"""The parser's modules, each behind those that it imports."""
OPENED = f"<|tool_call>call:weather{{a:{STRING}"
CLOSED = STRING + "}<tool_call|>Text."
HOSTILE = {
    "end markers": (OPENED, "<tool_call|>x"),
    "bare end markers": (OPENED, "<tool_call|>"),
    "brackets and end markers": (OPENED, "x}<tool_call|>"),
    "end markers of both kinds": (OPENED, "x<tool_call|>}<tool_call|>"),
    "end markers and blanks": (OPENED, "<tool_call|>   \n"),
    "start markers": (OPENED, "<tool_call|><|tool_call>"),
    "heads": (OPENED, "x<tool_call|><|tool_call>call:"),
    "long heads": (OPENED, "<tool_call|><|tool_call>call:" + "w" * 300),
    "calls": (OPENED, f"b}}<tool_call|><|tool_call>call:weather{{a:{STRING}"),
    "partial markers": (OPENED, "<tool_call|><|tool_"),
    "partial delimiters": (OPENED, '}<tool_call|><|"<|'),
    "delimiters": (OPENED, f"<tool_call|>{STRING}x"),
    "delimiters and keys": (OPENED, f"}}<tool_call|>x{STRING},b:{STRING}"),
    "delimiters and words": (OPENED, f"x<tool_call|>y{STRING}, words"),
    "arrays": (OPENED[:-5], f"[{STRING}]<tool_call|>"),
    "brackets": (OPENED, "}])<tool_call|>"),
    "an undeclared tool": (OPENED.replace("weather", "dance"), "<tool_call|>x"),
    "end markers in text": ("", "x<tool_call|>"),
    "thoughts": ("", "<|channel>thought\nx\n<channel|>y"),
    "unmarked calls": ("", "\ncall:weather(a"),
    "apostrophes": (OPENED[:-5], "'b,"),
    "quotes": (OPENED[:-5], '"}<tool_call|>'),
}
"""What an answer begins with, and what is repeated in it."""
SIZES = (1, 13, 0)
"""Characters in a piece; 0: whole."""


class Count:
    """How many characters were worked on, by the operations that the instrumented code calls."""

    def __init__(self) -> None:
        self.characters = 0

    def add(self, left: Any, right: Any) -> Any:
        return self._made(left + right)

    def cut(self, text: Any, at: Any) -> Any:
        return self._made(text[at])

    def printed(self, text: str) -> Any:
        return self._made(text)

    def call(self, of: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        found = getattr(of, name)(*args, **kwargs)
        if name in ("search", "match", "fullmatch", "finditer"):
            return self._searched(name, found, *args)
        if isinstance(of, str) and name in ("find", "rfind", "count", "index"):
            self.characters += len(range(len(of))[slice(*(*args[1:3], None, None)[:2])])
        else:
            self.characters += len(found) if isinstance(found, str) else 1
        return found

    def _made(self, made: Any) -> Any:
        self.characters += len(made) if isinstance(made, str) else 0
        return made

    def _searched(self, name: str, found: Any, text: str, at: int = 0, stop: int = sys.maxsize) -> Any:
        if name == "finditer":
            return self._each(found, text, at)
        if name == "search" or found:
            self.characters += max((found.end() if found else min(len(text), stop)) - at, 1)
        return found

    def _each(self, found: Iterator[Any], text: str, at: int) -> Iterator[Any]:
        for one in found:
            self.characters += one.end() - at
            at = one.end()
            yield one
        self.characters += len(text) - at


class Instrumented(ast.NodeTransformer):
    """Replaces additions, slices, f-strings and calls of methods by calls of ``_count``."""

    def _calls(self, name: str, *args: ast.expr, keywords: list[ast.keyword] | None = None) -> ast.expr:
        return ast.Call(ast.Attribute(ast.Name("_count", ast.Load()), name, ast.Load()), list(args), keywords or [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        return self._calls("add", node.left, node.right) if isinstance(node.op, ast.Add) else node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Add) or not isinstance(node.target, ast.Name):
            return node
        return ast.Assign([node.target], self._calls("add", ast.Name(node.target.id, ast.Load()), node.value))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.slice, ast.Slice) or not isinstance(node.ctx, ast.Load):
            return node
        bounds = [bound or ast.Constant(None) for bound in (node.slice.lower, node.slice.upper)]
        return self._calls("cut", node.value, ast.Call(ast.Name("slice", ast.Load()), bounds, []))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        return self._calls("printed", node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        of = node.func
        if not isinstance(of, ast.Attribute) or ast.unparse(of.value) in ("super()", "re", "_count"):
            return node
        return self._calls("call", of.value, ast.Constant(of.attr), *node.args, keywords=node.keywords)


@functools.cache
def instrumented(name: str) -> types.CodeType:
    """A parser's module whose operations on text are counted."""
    source = (Path(serving.__path__[0]) / f"{name}.py").read_text()
    return compile(ast.fix_missing_locations(Instrumented().visit(ast.parse(source))), name, "exec")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Count]:
    """The module ``answer``, and what it and the parser's other modules count."""
    count = Count()
    for name in MODULES:
        module: Any = types.ModuleType(f"{serving.__name__}.{name}")
        module._count = count
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(serving, name, module, raising=False)
        exec(instrumented(name), module.__dict__)
    return module, count


def work(counted: tuple[Any, Count], text: str, size: int) -> int:
    """The characters that are worked on to read ``text`` in pieces of ``size``."""
    module, count = counted
    reader = module.AnswerReader(thoughts=True, calls=True, tools={"weather": None})
    count.characters = 0
    for at in range(0, len(text), size or len(text)):
        reader.read(text[at : at + (size or len(text))])
    reader.finish()
    return count.characters


TEXTS = {name: [begun + part * (length // len(part)) for length in (2000, 4000)] for name, (begun, part) in HOSTILE.items()}
TEXTS |= {
    f"{name}, alone": [answers.repeated(name, length) for length in (2000, 4000)] for name in answers.REPEATED if name != answers.LONGEST
}


@pytest.mark.parametrize("name", TEXTS)
def test_twice_the_answer_is_twice_the_work(name: str, counted: tuple[Any, Count], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[f"{serving.__name__}.string_ends"], "LIMIT", 256, raising=False)  # 1/16, for short answers
    for size in SIZES:
        for end in ("", CLOSED):
            texts = [text + end for text in TEXTS[name]]
            once, twice = (work(counted, text, size) for text in texts)
            assert once < 300 * len(texts[0]), f"pieces of {size}: {once} characters for {len(texts[0])}"
            assert twice < 2.4 * once, f"pieces of {size}: {once} and {twice} characters"
