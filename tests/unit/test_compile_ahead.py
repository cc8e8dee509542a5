"""What a start compiles is compiled again from a list, in processes without a card, and found by the launch that looks for it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton.language as tl
from triton import knobs

from sglang_gemma4.kernels.dense import few_row_linear
from sglang_gemma4.kernels.experts import chunk_experts
from sglang_gemma4.kernels.heads import head_argmax
from sglang_gemma4.kernels.register_products import Warps
from sglang_gemma4.kernels.weights import Grouped
from sglang_gemma4.patching.switches import CACHE_DIR
from sglang_gemma4.start import ahead, child, folder, kernels, manifest
from tests.harness.gpu_compiler import compiling_for

KEY = ahead.key_of("Gemma4ForConditionalGeneration", {"layers": 2}, {"tp_size": 1})
CARD = "NVIDIA H200"
HOPPER = 90


def launch() -> None:
    """One kernel for blocks of two and of four."""
    for parts in (2, 3):
        head_argmax.join_pairs(torch.empty(parts, 2, 5, dtype=torch.float32))


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Triton's cache and ours in empty folders; called, another empty one for Triton's, and nothing in memory."""
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "ours"))
    monkeypatch.setattr(manifest, "_entries", {})
    monkeypatch.setattr(manifest, "_left_out", set())
    monkeypatch.setattr(manifest, "_decode", set())
    monkeypatch.setattr(knobs.compilation, "listener", None)
    numbers = iter(range(9))

    def anew() -> None:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / f"triton-{next(numbers)}"))
        for kernel in {manifest.kernel(name) for name in known_kernels()}:
            kernel.device_caches.clear()

    anew()
    return anew


def known_kernels() -> list[str]:
    from triton.runtime.jit import _triton_jit_function_registry

    return [name for name in _triton_jit_function_registry if name.startswith("sglang_gemma4.kernels.heads")]


def record() -> list[manifest.Entry]:
    """One start's launches on a card that is not there."""
    kernels.watch(manifest.record)
    with pytest.MonkeyPatch.context() as patch, compiling_for(HOPPER, lambda *_: None, patch):
        launch()
    return manifest.recorded()


def hits() -> list[bool]:
    """Another start's: whether each compilation was found on disk."""
    found: list[bool] = []
    knobs.compilation.listener = lambda **said: found.append(said["cache_hit"])
    with pytest.MonkeyPatch.context() as patch, compiling_for(HOPPER, lambda *_: None, patch):
        launch()
    return found


def launch_in_registers() -> None:
    """One kernel in Gluon."""
    weight = Grouped(torch.empty(64, 64, dtype=torch.uint8), torch.empty(64, 4, dtype=torch.bfloat16))
    x = torch.empty(3, 128, dtype=torch.bfloat16)
    few_row_linear.few_row_linear(x, weight, few_row_linear.counters(64, x.device), warps=Warps(16, 4))


def launch_from_registers() -> None:
    """Of five, two are assembled by another ptxas than all else."""
    w13 = Grouped(torch.empty(2, 128, 64, dtype=torch.uint8), torch.empty(2, 128, 4, dtype=torch.bfloat16))
    w2 = Grouped(torch.empty(2, 128, 32, dtype=torch.uint8), torch.empty(2, 128, 2, dtype=torch.bfloat16))
    ids = torch.zeros(40, 1, dtype=torch.int32)
    chunk_experts.chunk_experts(torch.empty(40, 128, dtype=torch.bfloat16), w13, w2, torch.empty(40, 1), ids)


@pytest.mark.parametrize(("begin", "count"), [(launch_in_registers, 1), (launch_from_registers, 5)])
def test_a_kernel_in_gluon_is_compiled_ahead_too(begin: Callable[[], None], count: int, caches: Callable[[], None]) -> None:
    kernels.watch(manifest.record)
    with pytest.MonkeyPatch.context() as patch, compiling_for(HOPPER, lambda *_: None, patch):
        begin()
    entries = manifest.recorded()
    assert len(entries) == count
    assert manifest.left_out() == set()
    caches()
    for entry in entries:
        assert manifest.compile_entry(entry)
        manifest.kernel(entry["kernel"]).device_caches.clear()
    found: list[bool] = []
    knobs.compilation.listener = lambda **said: found.append(said["cache_hit"])
    with pytest.MonkeyPatch.context() as patch, compiling_for(HOPPER, lambda *_: None, patch):
        begin()
    assert found == [True] * count


def test_a_launch_finds_what_was_compiled_ahead(caches: Callable[[], None]) -> None:
    entries = record()
    assert len(entries) == 2
    assert manifest.left_out() == set()
    start = ahead.Ahead(CARD, KEY)
    assert start.begin() == 0, "no list yet"
    start.keep()

    caches()
    assert hits() == [False, False], "an empty cache, which is what a first start in a container has"
    caches()
    assert not any(manifest.is_compiled(entry) for entry in entries)
    start = ahead.Ahead(CARD, KEY)
    assert start.begin() == 2
    said = str(start.wait(300))
    assert said.startswith("2 kernels were compiled ahead"), said
    assert "0 were on disk, 0 failed" in said
    assert all(manifest.is_compiled(entry) for entry in entries)
    assert hits() == [True, True]
    assert ahead.Ahead(CARD, KEY).begin() == 0, "a warm start begins no process"


def test_an_entry_has_the_key_that_the_launch_looked_up(caches: Callable[[], None]) -> None:
    for entry in record():
        again = json.loads(json.dumps(entry))
        assert manifest.cache_key(again) == entry["hash"]
        for changed in ({"options": {**entry["options"], "num_warps": 8}}, {"target": ["cuda", 80, 32]}):
            assert manifest.cache_key(again | changed) != entry["hash"]


def test_what_the_first_requests_compile_is_kept_too(caches: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    found = record()
    monkeypatch.setattr(manifest, "_entries", {found[0]["hash"]: found[0]})
    start = ahead.Ahead(CARD, KEY)
    start.keep()
    saved: list[int] = []
    keep = start.keep

    def kept_again() -> None:
        saved.append(manifest.count())
        keep()

    def a_request(_seconds: float) -> None:
        """The second one makes Triton compile."""
        requests.append(len(requests))
        if len(requests) == 2:
            manifest._entries[found[1]["hash"]] = found[1]

    requests: list[int] = []
    monkeypatch.setattr(start, "keep", kept_again)
    monkeypatch.setattr("time.sleep", a_request)
    start.keep_on(times=3)
    assert (len(requests), saved) == (3, [2]), "written once, when there was more"
    kept = ahead.Ahead(CARD, KEY).known["entries"]
    assert sorted(entry["hash"] for entry in kept) == sorted(entry["hash"] for entry in found)


def test_a_list_of_another_version_is_compiled_as_far_as_it_still_fits(caches: Callable[[], None]) -> None:
    entries = record()
    gone = entries[0] | {"kernel": "sglang_gemma4.kernels.heads.head_argmax:_no_such_kernel", "hash": "00" * 32}
    folder.save(ahead.KIND, CARD, KEY, {"versions": {"triton": "another"}, "entries": [gone, entries[1]]})
    caches()
    start = ahead.Ahead(CARD, KEY)
    assert start.begin() == 2
    said = str(start.wait(300))
    assert said.startswith("1 kernels were compiled ahead")
    assert "1 failed" in said
    assert "_no_such_kernel (ValueError" in said
    start.keep()
    assert ahead.Ahead(CARD, KEY).known == {"versions": folder.versions(), "entries": sorted(entries, key=lambda each: each["hash"])}


@pytest.mark.parametrize("broken", ["not JSON", '{"value": {"entries": [{}]}}', '{"value": 3}'])
def test_a_broken_list_costs_a_line(broken: str, caches: Callable[[], None]) -> None:
    path = folder.place(ahead.KIND, CARD, KEY)
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_text(broken)
    start = ahead.Ahead(CARD, KEY)
    assert start.begin() == 0
    assert start.wait() is None


@pytest.mark.parametrize(
    ("module", "seconds", "said"),
    [
        ("no_such_module", 60, "the process ended with status 1 and no answer"),
        ("this", 60, "the process ended with status 0 and no answer"),
        ("sglang_gemma4.start.ahead", 0.01, "not done after 0 s of waiting"),
    ],
)
def test_processes_that_end_or_hang_cost_a_line(module: str, seconds: float, said: str, caches: Callable[[], None]) -> None:
    start = ahead.Ahead(CARD, KEY)
    start.child = child.Child(module, "no such file")
    process = start.child.process
    assert start.wait(seconds) == f"kernels compiled ahead: {said}; the start goes on"
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 0.1, "i32", (1, ("a", 2.0)), [["tt.divisibility", 16]], tl.constexpr(4), tl.constexpr((1, 2)), tl.bfloat16],
)
def test_values_come_back_with_their_types(value: Any) -> None:
    back = manifest.decode(json.loads(json.dumps(manifest.encode(value))))
    assert type(back) is type(value)
    assert str(back) == str(value), "which is what Triton hashes"


def test_kernels_as_arguments_come_back(caches: Callable[[], None]) -> None:
    name = known_kernels()[0]
    assert manifest.decode(manifest.encode(manifest.kernel(name))) is manifest.kernel(name)


@pytest.mark.parametrize("value", [object(), {1: 2}, torch.bfloat16])
def test_what_cannot_be_kept_is_left_out(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be kept"):
        manifest.encode(value)
    before = manifest.left_out()
    manifest.record(src=value, metadata={"target": None})
    assert len(manifest.left_out()) >= len(before)
    assert manifest.left_out()
