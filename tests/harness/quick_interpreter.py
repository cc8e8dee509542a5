"""Triton's interpreter made quick: the same numbers from the same NumPy calls, in a third of the time.

Most of an interpreted launch's time is Python that repeats. For each call of a device function the interpreter replaces every name of
``triton.language``. For each integer sum it computes an overflow check that does nothing without ``debug``. For each intermediate tensor it
builds the types of its shape. :func:`install` keeps the names replaced, leaves that check out, builds the types of a shape once, and has
programs repeat the first one's calls (``tests/harness/recordings``).
``tests/interpreted/test_quick_interpreter.py`` compares both ways bit by bit.
"""

import builtins
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from tests.harness import is_off, recordings

VERSION = "3.8.0"
"""The Triton whose functions are replaced here; with another the interpreter stays as it is."""


_REPLACED: list[tuple[Any, str, Any]] = []
"""Owner, name and value of what :func:`install` replaced."""
_SCOPES: list[Any] = []
"""Triton's scopes of replaced names, which it would restore after a launch."""


class NothingToRestore:
    """A scope of replaced names that stay replaced."""

    def restore(self) -> None:
        """Put nothing back."""


def install(keep: bool = False) -> None:
    """Make this process's interpreter quick. ``keep`` keeps recordings between launches: then no test may replace what kernels call."""
    if is_off("interpreter"):
        return
    import triton

    if triton.__version__ != VERSION:
        print(f"quick_interpreter.py is for Triton {VERSION}, here is {triton.__version__}: interpreted tests take three times as long")
        return
    from triton.language import core
    from triton.runtime import interpreter

    def put(owner: Any, name: str, value: Any) -> None:
        _REPLACED.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    builder = interpreter.interpreter_builder
    if not builder.options.debug:  # with it the check is made and stays
        put(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=False))
    put(interpreter, "_patch_lang", _replaced_once(interpreter._patch_lang))
    put(interpreter, "_patch_attr", _pass_semantic(interpreter.interpreter_semantic))
    put(interpreter, "_get_np_dtype", _dtypes(interpreter._get_np_dtype, core))
    shapes = _Shapes(core)
    put(core.block_type, "__init__", shapes.block_type_init(core.block_type.__init__))
    put(core.tensor, "__init__", shapes.tensor_init())
    semantic = type(interpreter.interpreter_semantic)
    put(semantic, "broadcast_impl_value", _of_one_shape(semantic.broadcast_impl_value))
    put(semantic, "cast", _of_one_type(semantic.cast))
    if not is_off("recordings"):
        recordings.install(put, interpreter, core, keep)


@contextlib.contextmanager
def as_triton_has_it(keep: bool = False) -> Iterator[None]:
    """Triton's own interpreter inside this context, to compare with; afterwards :func:`install` is called with ``keep``."""
    take_back()
    try:
        yield
    finally:
        install(keep)


def take_back() -> None:
    """Undo :func:`install`."""
    while _SCOPES:
        _SCOPES.pop().restore()
    while _REPLACED:
        setattr(*_REPLACED.pop())


def _replaced_once(replace: Callable[[Any], Any]) -> Callable[[Any], NothingToRestore]:
    """Triton's ``_patch_lang``, called once for each function."""
    done: set[Any] = set()
    nothing = NothingToRestore()

    def patch_lang(function: Any) -> NothingToRestore:
        function = getattr(function, "interpreted", function)  # of a launch that is recorded
        if function not in done:
            _SCOPES.append(replace(function))
            done.add(function)
        return nothing

    return patch_lang


def _pass_semantic(semantic: Any) -> Callable[..., None]:
    """Triton's ``_patch_attr`` without a new dictionary of arguments for each call."""

    def patch_attr(owner: Any, name: str, member: Callable[..., Any], builder: Any, scope: Any) -> None:
        def interpreted(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return member(*args, **kwargs)

        scope.set_attr(owner, name, interpreted)

    return patch_attr


def _dtypes(find: Callable[[Any], Any], core: Any) -> Callable[[Any], Any]:
    """Triton's ``_get_np_dtype``, which makes a table of all types for each call."""
    by_name: dict[str, Any] = {}

    def get_np_dtype(dtype: Any) -> Any:
        scalar = dtype.element_ty if isinstance(dtype, core.block_type) else dtype
        found = by_name.get(scalar.name)
        if found is None:
            found = by_name[scalar.name] = find(scalar)
        return found

    return get_np_dtype


def _of_one_shape(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    """Triton's ``broadcast_impl_value``; two tensors of one shape, or two scalars, are returned as they are."""

    def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        same = left.shape is right.shape if left.is_block() and right.is_block() else left.is_block() == right.is_block()
        return (lhs, rhs) if same else broadcast(self, lhs, rhs)

    return broadcast_impl_value


def _of_one_type(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Triton's ``cast``; a tensor of that type already is returned as it is."""

    def cast(self: Any, given: Any, dtype: Any, *more: Any, **named: Any) -> Any:
        return given if given.type.scalar is dtype.scalar else convert(self, given, dtype, *more, **named)

    return cast


@dataclasses.dataclass
class _Shapes:
    """What types and tensors of one shape share; nothing writes into it."""

    core: Any
    of_types: dict[tuple[int, ...], tuple[Any, int, str]] = dataclasses.field(default_factory=dict)

    def block_type_init(self, original: Callable[..., None]) -> Callable[..., None]:
        """``block_type.__init__``: the first of a shape is checked and made by Triton."""
        core, known = self.core, self.of_types

        def init(self: Any, element_ty: Any, shape: Any) -> None:
            sizes = shape.values if isinstance(shape, core.tuple) else shape
            key = builtins.tuple([size.value if isinstance(size, core.constexpr) else size for size in sizes])
            found = known.get(key)
            if found is None:
                original(self, element_ty, shape)
                if all(type(size) is int for size in key):
                    known[key] = self.shape, self.numel, str(self.shape)
                return
            self.element_ty = element_ty
            self.shape, self.numel, written = found
            self.name = f"<{written}, {element_ty}>"

        return init

    def tensor_init(self) -> Callable[..., None]:
        """``tensor.__init__``."""
        core = self.core

        @functools.cache
        def of_tensors(sizes: tuple[int, ...]) -> tuple[Any, Any]:
            shape = core.tuple([core.constexpr(size) for size in sizes])
            return shape, core.constexpr(core.math.prod(sizes))

        def init(self: Any, handle: Any, type: Any) -> None:
            self.handle = handle
            self.type = type
            self.dtype = type.scalar
            self.shape, self.numel = of_tensors(builtins.tuple(type.shape.values) if type.is_block() else ())

        return init
