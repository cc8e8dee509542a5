"""What changes with each batch is not compiled for: the first batch of another size would wait seconds for a kernel of its own."""

import importlib
import pkgutil

import pytest
from triton.runtime.jit import JITFunction

from sglang_gemma4 import kernels

OF_A_BATCH = {"rows", "ROWS", "tokens", "TOKENS", "requests", "wanted", "most", "cache_slots"}
"""Arguments; Triton compiles others anew for 1 and for multiples of 16."""


def launched() -> list[JITFunction]:
    found: dict[str, JITFunction] = {}
    for module in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}."):
        loaded = importlib.import_module(module.name)
        for name, each in vars(loaded).items():
            if isinstance(each, JITFunction) and name.endswith("_kernel"):
                found[f"{each.__module__}.{name}"] = each
    return list(found.values())


@pytest.mark.parametrize("kernel", launched(), ids=lambda kernel: f"{kernel.__module__.rsplit('.', 1)[-1]}.{kernel.__name__}")
def test_a_batch_s_size_is_no_variant(kernel: JITFunction) -> None:
    specialized = {one.name for one in kernel.params if not one.is_constexpr and not one.do_not_specialize}
    assert not specialized & OF_A_BATCH
