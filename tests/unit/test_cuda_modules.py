"""SGLang's CUDA modules built ahead: which, and by its own builds, with a stand-in for nvcc, where a server looks for them."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from sglang_gemma4.kernels.kv_cache import formats
from sglang_gemma4.patching.switches import CACHE_DIR
from sglang_gemma4.serving.compiling import kinds_of_config
from sglang_gemma4.start import cuda_modules
from sglang_gemma4.start.child import Child
from sglang_gemma4.tiny import checkpoints, real_sizes

MODULES = ["kv:512", "kv:1024", "activation:bfloat16", "tree", "marlin:bfloat16"]
NVCC = """#!/bin/sh
# Compiles nothing: an object with one function, and the list of headers that SGLang reads.
[ "$1" = --version ] && { echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0; }
while [ $# -gt 0 ]; do
    case "$1" in -o) out=$2; shift ;; -MF) list=$2; shift ;; -c) source=$2; shift ;; esac
    shift
done
echo "$source" >> "$BUILDS"
sleep "${SLOW:-0}"
[ -z "$BROKEN" ] || { echo "error: no such arch" >&2; exit 1; }
echo "$out: $source $(sed -n 's/^#include "\\(.*\\)"/\\1/p' "$source" | tr '\\n' ' ')" > "$list"
echo 'extern "C" void nothing() {}' | g++ -fPIC -x c++ -c - -o "$out"
"""
A_SERVER = """
import sys
from unittest import mock

import torch

torch.version.cuda = "13.0"
card = {"is_available": lambda: True, "current_device": lambda: 0}
card |= {"get_device_capability": lambda *_: (9, 0), "get_device_name": lambda *_: "H100"}
with mock.patch.multiple(torch.cuda, **card):
    from sglang.kernels.jit.utils import arch
    arch.is_cuda = lambda: torch.cuda.is_available() and torch.version.cuda is not None  # what it asks; its answer was kept at import
    from sglang.kernels.ops.activation.activation import activation_module
    from sglang.kernels.ops.kvcache.kvcache import _jit_kvcache_module
    from sglang.kernels.ops.gemm.gptq_marlin import _jit_gptq_marlin_module
    from sglang.kernels.ops.speculative.tree import _jit_tree_module
    for size in (512, 1024):
        _jit_kvcache_module(size, size, 0)
    activation_module(torch.bfloat16)
    _jit_tree_module()
    _jit_gptq_marlin_module(torch.bfloat16)
print("all found")
"""
ONE_MODULE = """
from sglang_gemma4.start import cuda_modules
with cuda_modules.as_on_a_card((9, 0)):
    print(cuda_modules.build("kv:512"))
"""
NINJA = """Failed to build JIT module m in /jit/build-0/.staging-0
stdout:
[1/2] nvcc -MD -MF "cuda_0.o.d" -Werror -c "cuda.cu" -o "cuda_0.o"
FAILED: cuda_0.o
nvcc -MD -MF "cuda_0.o.d" -Werror -c "cuda.cu" -o "cuda_0.o"
{words}
ninja: build stopped: subcommand failed.

stderr:
"""


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CUDA_HOME whose nvcc notes what it was asked for; the file of these notes."""
    assert shutil.which("g++"), "SGLang's builds link with g++, which is not here"
    home, notes = tmp_path / "cuda", tmp_path / "builds"
    (home / "bin").mkdir(parents=True)
    (home / "lib64").mkdir()
    (home / "bin" / "nvcc").write_text(NVCC)
    (home / "bin" / "nvcc").chmod(0o755)
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "/dev/null", "-o", str(home / "lib64" / "libcudart.so")], check=True)
    for name, value in {
        "CUDA_HOME": str(home),
        "BUILDS": str(notes),
        "SGLANG_JIT_CACHE_DIR": str(tmp_path / "jit"),
        "SGLANG_CACHE_DIR": str(tmp_path / "sglang"),
        CACHE_DIR: str(tmp_path / "ours"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    return notes


def start() -> cuda_modules.CudaModules:
    return cuda_modules.CudaModules("NVIDIA H100", (9, 0), MODULES)


def begins() -> bool:
    """Whether a start begins a child, which is ended at once."""
    begun = start()
    if begun.begin():
        assert begun.child is not None
        begun.child.process.kill()
        begun.child.process.wait()
        return True
    return False


@pytest.fixture
def slow(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    """A child in the middle of two builds, which take longer than the test waits."""
    monkeypatch.setenv("SLOW", "600")
    child = Child("sglang_gemma4.start.cuda_modules", "9", "0", "kv:512", "tree")
    below: list[psutil.Process] = []
    try:
        limit = time.monotonic() + 120
        while not toolkit.exists() or len(toolkit.read_text().splitlines()) < 2:
            assert time.monotonic() < limit
            assert child.process.poll() is None
            time.sleep(0.1)
        below = psutil.Process(child.process.pid).children(recursive=True)
        yield child
    finally:
        child.process.kill()
        child.process.wait()
        for each in below:  # the stand-in compilers sleep on
            if each.is_running():
                each.kill()


def test_a_server_finds_what_was_built_and_the_next_start_builds_nothing(toolkit: Path) -> None:
    first = start()
    assert first.begin()
    said = str(first.wait(300))
    assert said.startswith(f"{len(MODULES)} of SGLang's CUDA modules were compiled ahead in "), said
    assert said.endswith(" s"), said
    assert len(toolkit.read_text().splitlines()) == len(MODULES)
    # SGLang itself refuses to build here, so that what is not where it looks raises.
    environ = {**os.environ, "SGLANG_CRASH_ON_JIT_COMPILE": "1"}
    found = subprocess.run([sys.executable, "-c", A_SERVER], env=environ, capture_output=True, text=True)
    assert found.stdout.endswith("all found\n"), found.stderr
    assert not begins()
    for library in Path(os.environ["SGLANG_JIT_CACHE_DIR"]).rglob("*.so"):
        library.unlink()
    assert begins(), "its files are gone"


def test_a_build_that_fails_is_a_line_and_the_next_start_tries_again(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "1")
    said = Child("sglang_gemma4.start.cuda_modules", "9", "0", "kv:512").answer(300)
    assert isinstance(said, dict), said
    assert said["objects"] == []
    assert [name for name, _ in said["failed"]] == ["kv:512"]
    failing = start()
    assert failing.begin()
    line = str(failing.wait(300))
    assert line.startswith("0 of SGLang's CUDA modules were compiled ahead in "), line
    assert "; not kv:512: RuntimeError: error: no such arch; not kv:1024: " in line, line
    assert begins()


def test_a_child_that_is_killed_leaves_no_process_and_no_lock(slow: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [each for each in psutil.Process(slow.process.pid).children() if "sglang_gemma4.start.cuda_modules" in each.cmdline()]
    assert len(workers) == 2
    slow.process.kill()
    # Its workers had what the answer is read from open too: with them left, this would take its whole time.
    assert slow.answer(120) == "the process ended with status -9 and no answer"
    assert psutil.wait_procs(workers, timeout=120)[1] == []
    monkeypatch.setenv("SLOW", "0")
    patience = 300  # half of what the lost build takes
    server = subprocess.run([sys.executable, "-c", ONE_MODULE], capture_output=True, text=True, timeout=patience)
    assert "kvcache_512_512" in server.stdout, server.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("warning: unused\ncuda.cu(3): error: no such arch", "cuda.cu(3): error: no such arch"),
        ("/usr/bin/ld: cannot find -lcudart", "/usr/bin/ld: cannot find -lcudart"),
        ("sh: 1: nvcc: gone", "sh: 1: nvcc: gone"),
    ],
)
def test_the_reason_is_the_compiler_s(words: str, expected: str) -> None:
    assert cuda_modules.reason(RuntimeError(NINJA.format(words=words))) == f"RuntimeError: {expected}"


def test_a_reason_of_another_kind() -> None:
    assert cuda_modules.reason(ValueError("Dependency x is not registered.")) == "ValueError: Dependency x is not registered."
    assert cuda_modules.reason(TimeoutError()) == "TimeoutError: "


def test_without_a_compiler_nothing_is_begun(tmp_path: Path) -> None:
    code = "from sglang_gemma4.start import cuda_modules; print(cuda_modules.compiler())"
    environ = {**os.environ, "CUDA_HOME": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True).stdout.splitlines()[-1] == "None"


@pytest.mark.parametrize(("model", "ranks", "rows"), [("26b-a4b", 1, [2048, 4096]), ("26b-a4b", 2, [1024, 2048]), ("e2b", 1, [512, 1024])])
def test_modules_by_the_config(model: str, ranks: int, rows: list[int]) -> None:
    kinds = kinds_of_config(json.loads(json.dumps(real_sizes.target(model))), ranks)
    sizes = [kind.kv_heads * kind.dim * torch.bfloat16.itemsize for kind in kinds]
    assert cuda_modules.needed(sizes, torch.bfloat16, True) == [*(f"kv:{size}" for size in rows), "activation:bfloat16", "tree"]
    assert cuda_modules.needed([], torch.float16, False) == ["activation:float16"], "a quantised cache, no drafts"


@pytest.mark.parametrize(("name", "rows"), [("tiny-e2b", [64, 128]), ("tiny-26b-a4b", [128]), ("tiny-31b", [128, 256])])
def test_rows_of_the_tiny_models(name: str, rows: list[int]) -> None:
    config = json.loads((checkpoints.SHIPPED / name / "config.json").read_text())
    sizes = [kind.kv_heads * kind.dim * torch.bfloat16.itemsize for kind in kinds_of_config(config, 1)]
    assert cuda_modules.needed(sizes, torch.bfloat16, False)[:-1] == [f"kv:{size}" for size in rows], "each size once"


@pytest.mark.parametrize(
    ("kv_cache_dtype", "expected"),
    [("auto", 2), ("bf16", 2), ("bfloat16", 2), ("fp8_e4m3", 1), ("fp8_e5m2", 1), ("nvfp4", 0), *((name, 0) for name in formats.FORMATS)],
)
def test_rows_by_the_cache_s_type(kv_cache_dtype: str, expected: int) -> None:
    assert cuda_modules.element(kv_cache_dtype, torch.bfloat16, {}) == expected


def test_a_checkpoint_s_own_fp8_cache() -> None:
    config = {"quantization_config": {"kv_cache_quant_algo": "FP8"}}
    assert cuda_modules.element("auto", torch.bfloat16, config) == 1
    assert cuda_modules.element("bfloat16", torch.bfloat16, config) == 2


def test_marlin_s_modules_of_4_bit_weights() -> None:
    four = {"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}
    eight = {"config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}
    found = [cuda_modules.has_four_bits({"quantization_config": given}) for given in (four, {"bits": 4}, {"w_bit": 4}, eight, None)]
    assert found == [True, True, True, False, False]
    assert cuda_modules.needed([], torch.bfloat16, False, True) == ["activation:bfloat16", "marlin:bfloat16"]
