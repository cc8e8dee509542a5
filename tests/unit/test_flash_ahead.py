"""FlashAttention-4 compiled ahead: when, of which kinds of layers, and into the files that a server with a card looks for."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.kernels.jit import cute_aot_cache
from sglang.kernels.ops.attention import flash_attn

from sglang_gemma4.attention import flash_ahead
from sglang_gemma4.attention.flash_prefill import Kind
from sglang_gemma4.patching.switches import CACHE_DIR
from sglang_gemma4.serving.compiling import kinds_of_config
from sglang_gemma4.start.child import Child
from sglang_gemma4.tiny import real_sizes

CARD = "NVIDIA H200"
SLIDING, FULL = Kind(16, 8, 256, 1023), Kind(16, 2, 512, -1)


class Answering:
    """A child that has answered."""

    begun: list[tuple[str, ...]]
    said: dict[str, Any] | str

    def __init__(self, module: str, *arguments: str, **environ: str) -> None:
        self.begun.append((module, *arguments, environ["CUTE_DSL_ARCH"]))

    def answer(self, seconds: float) -> dict[str, Any] | str:
        return self.said


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Answering]:
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "ours"))
    monkeypatch.delenv("CUTE_DSL_ARCH", raising=False)
    monkeypatch.setattr(flash_ahead, "Child", Answering)
    Answering.begun = []
    (tmp_path / "kernel.o").write_text("")
    Answering.said = {"objects": [str(tmp_path / "kernel.o")], "failed": [], "seconds": 7.0}
    return Answering


def start() -> flash_ahead.FlashAhead:
    return flash_ahead.FlashAhead(CARD, [FULL, SLIDING], torch.bfloat16)


def test_compiled_once_and_again_when_the_files_are_gone(children: type[Answering], tmp_path: Path) -> None:
    first = start()
    assert first.begin()
    assert str(first.wait()).startswith("FlashAttention-4 was compiled ahead in 7.0 s")
    kinds = "[[16, 2, 512, -1], [16, 8, 256, 1023]]"
    assert children.begun == [("sglang_gemma4.attention.flash_ahead", kinds, "bfloat16", "sm_90a")]
    second = start()
    assert not second.begin()
    assert second.wait() is None
    (tmp_path / "kernel.o").unlink()
    assert start().begin()


def test_an_operator_s_own_settings_of_the_compiler_stand(children: type[Answering], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_CUTE_AOT_CACHE_DIR", "")
    assert not start().begin(), "nothing is kept on disk"
    monkeypatch.setenv("SGLANG_CUTE_AOT_CACHE_DIR", "/somewhere")
    assert start().begin()
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    assert not start().begin()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "not done after 30 s of waiting",
            "FlashAttention-4 compiled ahead: not done after 30 s of waiting; the start compiles what it needs",
        ),
        ({"objects": [], "failed": [["a kind", "RuntimeError: no"]], "seconds": 1.0}, "not a kind: RuntimeError: no"),
    ],
)
def test_failures_are_a_line_and_nothing_is_kept(said: dict[str, Any] | str, told: str, children: type[Answering]) -> None:
    children.said = said
    failing = start()
    failing.begin()
    assert told in str(failing.wait())
    assert start().begin()


@pytest.mark.parametrize(
    ("model", "ranks", "kinds"),
    [
        ("26b-a4b", 1, {SLIDING, FULL}),
        ("26b-a4b", 4, {Kind(4, 2, 256, 1023), Kind(4, 1, 512, -1)}),
        ("e2b", 1, {Kind(8, 1, 256, 511), Kind(8, 1, 512, -1)}),
    ],
)
def test_kinds_by_the_config(model: str, ranks: int, kinds: set[Kind]) -> None:
    assert set(kinds_of_config(real_sizes.target(model), ranks)) == kinds


def test_the_kernel_is_in_the_file_that_a_hopper_s_server_looks_for(tmp_path: Path) -> None:
    """One kernel for all shapes; compiled for sm_90a without a card."""
    cache = str(tmp_path / "cute")
    environ = {"FLASH_ATTENTION_ARCH": "sm_90", "CUTE_DSL_ARCH": "sm_90a", "SGLANG_CUTE_AOT_CACHE_DIR": cache}
    said = Child("sglang_gemma4.attention.flash_ahead", "[[2, 1, 256, 63]]", "bfloat16", **environ).answer(500)
    assert isinstance(said, dict), said
    assert said["failed"] == []
    (path,) = said["objects"]
    assert os.path.getsize(path) > 10_000
    sources = (str(Path(cute_aot_cache.__file__).resolve()), str(Path(flash_attn.__path__[0], "cute").resolve()))
    of_the_server = cute_aot_cache._compute_source_fingerprint(sources, True, "sm_90")
    assert Path(path).parent == Path(cache, of_the_server, "fwd")
