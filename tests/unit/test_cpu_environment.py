"""What `serve` adds to the environment and the command line, and where prefill chunks may end beside images."""

import math
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.attention import image_spans
from sglang_gemma4.cpu import environment, threads
from sglang_gemma4.cpu.environment import STANDIN, default_arguments, launch_environment


def test_environment_puts_the_standin_first_and_once() -> None:
    once = launch_environment({"PYTHONPATH": "/a:/b", "HOME": "/root"})
    assert once["PYTHONPATH"] == f"{STANDIN}:/a:/b"
    assert once["HOME"] == "/root"
    assert once["SGLANG_USE_CPU_ENGINE"] == once["SGLANG_GEMMA4_CPU"] == "1"
    assert launch_environment(once) == once


def test_threads_are_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "number", lambda: pytest.fail("nothing is measured where the number is given"))
    assert launch_environment({"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("cores", "free", "quota", "expected"),
    [
        (2, 1.9, math.inf, 2),
        (2, 1.3, math.inf, 1),
        (2, 0.0, math.inf, 1),
        (64, 44.0, math.inf, 44),
        (64, 64.0, 2.5, 2),
        (64, 64.0, 0.5, 1),
    ],
)
def test_threads_are_as_many_as_cores_are_free(cores: int, free: float, quota: float, expected: int) -> None:
    assert threads.choose(cores, free, quota) == expected


def counted(folder: Path, *busy: int) -> dict[int, list[int]]:
    """What is read of cores that have been busy, of 100 ticks each."""
    (folder / "stat").write_text(
        "cpu 1 2 3 4\n"
        + "".join(f"cpu{core} {ticks} 0 0 {90 - ticks} 10 0 0 0 {ticks} 0\n" for core, ticks in enumerate(busy))
        + "intr 7\n"
    )
    return threads.times(folder / "stat")


def test_only_cores_of_this_process_and_of_this_moment_count(tmp_path: Path) -> None:
    before = {core: [0] * 10 for core in range(3)}
    after = counted(tmp_path, 90, 0, 50)
    assert threads.idle(before, after, {1}) == 1
    assert threads.idle(before, after, {0, 1}) == pytest.approx(1.1)
    assert threads.idle(before, after, {2}) == 0.5
    assert threads.idle({}, {}, {0, 1}) == 2
    assert threads.idle(after, after, {0, 1}) == 2
    assert threads.times(tmp_path / "absent") == {}


def test_threads_are_chosen_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LOOKED", 0)
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    read = [{core: [ticks] * 8 for core in os.sched_getaffinity(0)} for ticks in (0, 1)]
    for core in read[1].values():
        core[3:5] = [0, 0]
    monkeypatch.setattr(threads, "times", lambda: read.pop(0) if read else {})
    assert launch_environment({})["OMP_NUM_THREADS"] == "1"
    assert int(launch_environment({})["OMP_NUM_THREADS"]) == threads.choose(threads.cores(), math.inf, threads.quota())
    assert "1 OpenMP thread," in threads.said(1)
    assert "OMP_NUM_THREADS sets another number" in threads.said(1)


def test_quotas_of_both_versions_and_of_nested_groups(tmp_path: Path) -> None:
    groups, inner = tmp_path / "cgroup", tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert threads.quota(tmp_path, groups) == math.inf
    groups.write_text("0::/a/b\n")
    for text, expected in (("max 100000", math.inf), ("150000 100000", 1.5), ("", math.inf)):
        (inner / "cpu.max").write_text(text)
        assert threads.quota(tmp_path, groups) == expected
    (inner.parent / "cpu.max").write_text("50000 100000")
    assert threads.quota(tmp_path, groups) == 0.5
    first = tmp_path / "cpu" / "docker"
    first.mkdir(parents=True)
    groups.write_text("4:memory:/x\n3:cpu,cpuacct:/docker\n")
    for quota, expected in (("-1", math.inf), ("250000", 2.5)):
        (first / "cpu.cfs_quota_us").write_text(quota)
        (first / "cpu.cfs_period_us").write_text("100000")
        assert threads.quota(tmp_path, groups) == expected


def pairs(added: Any) -> Any:
    return {word for word in added if word.startswith("--")}


def test_defaults_are_added_and_nothing_is_overridden() -> None:
    everything = default_arguments(["--model-path", "m"])
    assert everything[everything.index("--dtype") + 1] == "float32"
    assert "--disable-overlap-schedule" in everything
    added = default_arguments(["--dtype", "bfloat16", "--max_total_tokens=7", "--disable-cuda-graph"])
    assert pairs(everything) - pairs(added) == {"--dtype", "--max-total-tokens", "--disable-cuda-graph"}


def test_what_a_config_file_says_counts_as_given(tmp_path: Any) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("dtype: bfloat16\nmem-fraction-static: 0.1\n")
    for argv in (["--config", str(config)], [f"--config={config}"]):
        assert not {"--dtype", "--mem-fraction-static"} & pairs(default_arguments(argv))


def test_engine_arguments() -> None:
    arguments = environment.default_engine_arguments({"dtype": "bfloat16"})
    assert arguments["dtype"] == "bfloat16"
    assert arguments["disable_overlap_schedule"] is True


def test_a_process_that_has_other_kernels_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "sgl_kernel", SimpleNamespace(__file__="/site-packages/sgl_kernel/__init__.py"))
    with pytest.raises(RuntimeError, match="already imported"):
        environment.prepare_this_process()


def test_the_standin_is_what_a_child_imports() -> None:
    program = "import sgl_kernel; print(sgl_kernel.__file__)"
    done = subprocess.run([sys.executable, "-c", program], env=launch_environment(os.environ), capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).parent.parent == STANDIN


@pytest.mark.parametrize("seed", range(200))
def test_chunks_cut_no_image_and_end(seed: Any) -> None:
    rng = random.Random(seed)
    page, total = rng.choice([1, 4, 16]), rng.randint(1, 400)
    spans, at = [], 0
    while (at := at + rng.randint(2, 60)) < total - 2:
        end = min(total - 2, at + rng.randint(0, 90))
        spans.append((at, end))
        at = end
    limit = page * rng.randint(1, 8)
    done = 0
    while done < total:
        length = image_spans.chunk_length(done, limit, total, spans, page)
        assert length > 0
        done += length
        assert done == total or done % page == 0
        assert done == total or not any(begin < done <= end for begin, end in spans)
        if length > limit:  # only to get past an image
            shorter = [e for e in range(done - length + 1, done - length + limit + 1) if e % page == 0]
            assert all(any(begin < e <= end for begin, end in spans) for e in shorter)


def item(kind: Any, *offsets: Any) -> Any:
    return SimpleNamespace(is_image=lambda: kind == "image", is_video=lambda: kind == "video", offsets=list(offsets))


def test_spans_are_sorted_joined_and_of_images_only() -> None:
    inputs = SimpleNamespace(mm_items=[item("image", (9, 12)), item("audio", (1, 3)), item("video", (13, 15), (4, 6)), item("image")])
    assert image_spans.of_inputs(inputs) == [(4, 6), (9, 15)]
    assert image_spans.of_inputs(None) == []


def test_reach() -> None:
    got = image_spans.reach([[(2, 4)], [], [(0, 9)]], torch.tensor([6, 3, 5]), torch.tensor([4, 1, 2]))
    assert got is not None
    assert got.tolist() == [4, 4, 4, 5, 2, 4, 4]
    assert image_spans.reach([[], []], torch.tensor([6, 3]), torch.tensor([4, 1])) is None


def test_only_models_that_say_so_attend_both_ways() -> None:
    for said, expected in (("vision", True), (None, False), ("all", False)):
        assert image_spans.bidirectional(SimpleNamespace(text_config=SimpleNamespace(use_bidirectional_attention=said))) is expected
