"""What Triton compiled in a start, as data from which a process without a GPU can compile the same again, ahead of use.

An entry names a kernel and what Triton specialises it by. Compiling it writes Triton's cache on disk under the key
that the recorded launch looks up. That is :func:`cache_key` of a decoded entry; with unchanged sources and versions
it is the recorded ``hash``.
"""

import hashlib
from contextlib import nullcontext
from dataclasses import fields
from importlib import import_module
from typing import Any

Entry = dict[str, Any]
_entries: dict[str, Entry] = {}
_left_out: set[str] = set()
_decode: set[str] = set()
"""Hashes of entries known to decode to their key, so that a later save does not check them again while requests run."""
COMPILES_WITHIN = "gemma4_compiles_within"
"""Attribute of a kernel that must be compiled inside a context: the function that makes the context."""


def encode(value: Any) -> Any:
    """A signature, constant or option as JSON from which :func:`decode` restores value and type.

    Raises:
        TypeError: Triton's kernels here are not specialised by this type.
    """
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (tuple, list):
        return {type(value).__name__: [encode(one) for one in value]}
    if isinstance(value, tl.constexpr):
        return {"constexpr": encode(value.value)}
    if isinstance(value, tl.dtype):
        return {"dtype": value.name}
    if isinstance(value, JITFunction):
        return {"kernel": kernel_name(value)}
    raise TypeError(f"a {type(value).__name__} cannot be kept")


def decode(value: Any) -> Any:
    """The reverse of :func:`encode`; modules of named kernels are imported.

    Raises:
        ValueError: the value names no known type.
    """
    import triton.language as tl

    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "tuple":
            return tuple(decode(one) for one in inner)
        case "list":
            return [decode(one) for one in inner]
        case "constexpr":
            return tl.constexpr(decode(inner))
        case "dtype":
            return tl.dtype(inner)
        case "kernel":
            return kernel(inner)
    raise ValueError(f"{kind!r} is no kind of value")


def kernel_name(function: Any) -> str:
    """``module:qualified name`` of a Triton kernel."""
    return f"{function.module}:{function.fn.__qualname__}"


def kernel(name: str) -> Any:
    """The kernel that :func:`kernel_name` names; its module is imported.

    Raises:
        ValueError: the module defines no such kernel.
    """
    from triton.runtime.jit import JITFunction, _triton_jit_function_registry

    module, _, function = name.partition(":")
    import_module(module)
    found = _triton_jit_function_registry.get(name)
    if not isinstance(found, JITFunction):
        raise ValueError(f"{module} defines no kernel {function}")
    return found


def entry_of(src: Any, metadata: dict[str, Any]) -> Entry:
    """The entry of one compilation, from what Triton passes to ``knobs.compilation.listener``.

    Raises:
        TypeError: part of it cannot be kept, such as a source that is not a Python function.
    """
    from triton.backends.nvidia.compiler import CUDAOptions

    target = metadata["target"]
    if type(src).__name__ not in ("ASTSource", "GluonASTSource") or target.backend != "cuda":
        raise TypeError(f"a {type(src).__name__} for {target.backend}")
    # extern_libs is a path on this machine; the default is restored where the entry is compiled.
    options = {field.name: metadata[field.name] for field in fields(CUDAOptions) if field.name not in ("extern_libs", "arch")}
    return {
        "kernel": kernel_name(src.fn),
        "signature": {name: encode(kind) for name, kind in src.signature.items()},
        "constants": [[list(path), encode(value)] for path, value in src.constants.items()],
        "attributes": [[list(path), encode(value)] for path, value in src.attrs.items()],
        # a hit on disk passes them as JSON keeps them, lists instead of tuples
        "options": {name: encode(tuple(value) if isinstance(value, list) else value) for name, value in options.items()},
        "target": [target.backend, target.arch, target.warp_size],
        "hash": metadata["hash"],
    }


def record(*, src: Any, metadata: dict[str, Any], **_others: Any) -> None:
    """Keep one compilation or hit on disk; what cannot be kept is left out, and the start continues."""
    try:
        entry = entry_of(src, metadata)
        _entries[entry["hash"]] = entry
    except Exception as error:  # no start may fail because of Triton's data
        _left_out.add(f"{getattr(src, 'name', src)}: {type(error).__name__}: {error}")


def recorded() -> list[Entry]:
    """What :func:`record` kept in this process and decodes to the key that Triton looked up; the rest is left out."""
    kept = []
    for entry in list(_entries.values()):
        if entry["hash"] in _decode:
            kept.append(entry)
            continue
        try:
            if cache_key(entry) == entry["hash"]:
                _decode.add(entry["hash"])
                kept.append(entry)
                continue
            reason = "compiled from this entry, it would have another key"
        except Exception as error:  # a kernel defined inside a function, say
            reason = f"{type(error).__name__}: {error}"
        _left_out.add(f"{entry['kernel']}: {reason}")
        del _entries[entry["hash"]]
    return kept


def count() -> int:
    """Number of recorded compilations and hits on disk, without those that :func:`recorded` has left out."""
    return len(_entries)


def left_out() -> set[str]:
    """What could not be kept, and why."""
    return set(_left_out)


def source_of(entry: Entry) -> tuple[Any, Any, dict[str, Any]]:
    """What ``triton.compile`` takes for an entry: source, target and options."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    def by_path(pairs: list[list[Any]]) -> dict[tuple[int, ...], Any]:
        return {tuple(path): decode(value) for path, value in pairs}

    signature = {name: decode(kind) for name, kind in entry["signature"].items()}
    function = kernel(entry["kernel"])
    of_language = GluonASTSource if function.is_gluon() else ASTSource
    source = of_language(function, signature, by_path(entry["constants"]), by_path(entry["attributes"]))
    return source, GPUTarget(*entry["target"]), {name: decode(value) for name, value in entry["options"].items()}


def _context(kernel: Any) -> Any:
    return getattr(kernel, COMPILES_WITHIN, nullcontext)()


def cache_key(entry: Entry) -> str:
    """Triton's cache key for an entry, with the sources and versions of this process."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import get_cache_key

    source, target, options = source_of(entry)
    with _context(source.fn):
        backend = make_backend(target)
        key = get_cache_key(source, backend, backend.parse_options(options), env_vars=get_cache_invalidating_env_vars())
    return hashlib.sha256(key.encode()).hexdigest()


def compile_entry(entry: Entry) -> bool:
    """Compile an entry into Triton's cache on disk, without a GPU; return whether it was not there yet."""
    import triton
    from triton import knobs

    hits: list[bool] = []
    before = knobs.compilation.listener
    knobs.compilation.listener = lambda **said: hits.append(said["cache_hit"])
    try:
        source, target, options = source_of(entry)
        with _context(source.fn):
            triton.compile(source, target=target, options=options)
    finally:
        knobs.compilation.listener = before
    return not hits[0]


def is_compiled(entry: Entry) -> bool:
    """Whether Triton's cache on disk has what was recorded, without importing the kernel."""
    from triton.runtime.cache import get_cache_manager

    name = entry["kernel"].rpartition(":")[2].rpartition(".")[2]
    return get_cache_manager(entry["hash"]).get_group(f"{name[:150]}.json") is not None
