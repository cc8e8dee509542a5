"""Records which hooks of patches and which Triton kernels each test reaches: the coverage of a selection, without tracing lines.

With ``TEST_REACH=FOLDER`` every process of the tests, forked engines too, writes a line ``TEST<tab>WHAT`` into FOLDER the first time a test
gets somewhere: ``hook PATCH TARGET`` when a hook runs, ``kernel NAME`` when a kernel is launched. Servers that tests start as commands are
not seen, and tests that look for a hook itself (test_declared_patches.py) fail.
``python -m tests.harness.reach FOLDER [DESELECTED]`` counts;
DESELECTED is a file of test ids, or their beginnings.
"""

import functools
import inspect
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = os.environ.get("TEST_REACH", "")
_seen: set[tuple[str, str]] = set()


def reached(what: str) -> None:
    """Write ``what`` down, once for each test and process."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "outside").rpartition(" ")[0]
    if (test, what) not in _seen:
        _seen.add((test, what))
        with Path(FOLDER, f"{os.getpid()}.tsv").open("a") as file:
            file.write(f"{test}\t{what}\n")


def record_hooks() -> None:
    """Have hooks that are placed from now on record when they run."""
    from sglang_gemma4.patching import hooks

    prepare = hooks.prepare

    def prepared(hook: Any) -> Any:
        item = prepare(hook)
        if isinstance(hook, hooks.Seam) and inspect.isfunction(item.value):
            item.value = _saying(item.value, f"hook {item.value.__module__.rpartition('.')[2]} {hook.target}")
        return item

    hooks.prepare = prepared


@functools.cache
def record_kernels() -> None:
    """Have kernels record, from now on, when they are launched, compiled or interpreted; acts once."""
    from triton.runtime.interpreter import GridExecutor
    from triton.runtime.jit import JITFunction

    for owner, method in ((GridExecutor, "__call__"), (JITFunction, "run")):
        original = getattr(owner, method)

        def launched(self: Any, *args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            function = getattr(self, "fn", self)
            if (function.__module__ or "").startswith("sglang_gemma4."):
                reached(f"kernel {function.__name__}")
            return _original(self, *args, **kwargs)

        setattr(owner, method, launched)


def _saying(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def said(*args: Any, **kwargs: Any) -> Any:
            reached(what)
            return await function(*args, **kwargs)

    else:

        @functools.wraps(function)
        def said(*args: Any, **kwargs: Any) -> Any:
            reached(what)
            return function(*args, **kwargs)

    return said


def main(folder: str, deselected: str = "") -> None:
    """Print how many hooks and kernels all tests reach, and which are missed without those listed in a file of test ids (or prefixes)."""
    by = defaultdict(set)
    for path in Path(folder).glob("*.tsv"):
        for line in path.read_text().splitlines():
            test, what = line.split("\t")
            by[what].add(test)
    out = tuple(Path(deselected).read_text().splitlines()) if deselected else ()
    out = tuple(prefix for prefix in out if prefix)
    for kind in ("hook", "kernel"):
        everything = [what for what in by if what.startswith(kind)]
        missed = sorted(what for what in everything if out and all(test.startswith(out) for test in by[what]))
        print(f"{kind}s reached: {len(everything)}, without the deselected: {len(everything) - len(missed)}")
        for what in missed:
            print(f"  missed: {what} ({', '.join(sorted(by[what])[:3])})")


if __name__ == "__main__":
    main(*sys.argv[1:])
