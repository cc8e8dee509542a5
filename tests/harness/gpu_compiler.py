"""Compiles kernels for a GPU that is absent: Triton needs a GPU only to load and run, not to compile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler
from triton.runtime import driver
from triton.runtime.jit import JITFunction


class Driver:
    """The part of a driver that compiling for a GPU needs."""

    def __init__(self, capability: int) -> None:
        self.capability, self.target = capability, GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.capability  # kernels are kept by device

    def get_current_stream(self, device: int) -> int:
        return device


@contextmanager
def compiling_for(capability: int, see: Callable[[str, Any], None], patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, every launched kernel is compiled for a compute capability (90 for 9.0) and passed to ``see`` with its
    name; nothing runs."""
    patch.setenv("TRITON_INTERPRET", "0")
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        see(kernel.__name__, run(kernel, *args, grid=grid, warmup=True, **options))

    patch.setattr(JITFunction, "run", compile_only)
    before = driver._active
    driver.set_active(Driver(capability))  # type: ignore[arg-type]
    try:
        yield
    finally:
        driver._active = before


class Unoptimized:
    """Triton's bindings of LLVM without LLVM's own optimization of a module; shared memory is laid out long before
    that."""

    def __init__(self, llvm: Any) -> None:
        self._llvm = llvm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llvm, name)

    def optimize_module(self, *_: Any, **__: Any) -> None:
        """Leave it as it is."""


@contextmanager
def without_assembling() -> Iterator[None]:
    """Compilation ends with the lowering to LLVM, where shared memory is laid out: half of its time goes into what comes after."""

    def skip(*given: Any) -> tuple[str, str] | None:
        if not given:
            return "lowered only", "lowered only"
        stages = given[1]

        def ptx(_module: Any, metadata: dict[str, Any]) -> str:
            metadata["name"] = "lowered only"
            return ""

        stages["ptx"], stages["cubin"] = ptx, lambda _module, _metadata: b""
        return None

    before = knobs.runtime.add_stages_inspection_hook, compiler.llvm
    knobs.runtime.add_stages_inspection_hook = skip  # type: ignore[assignment]
    compiler.llvm = Unoptimized(compiler.llvm)
    try:
        yield
    finally:
        knobs.runtime.add_stages_inspection_hook, compiler.llvm = before
