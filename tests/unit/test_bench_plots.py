"""Plots are drawn for what there is data for, at the promised size, with what a reader needs on them."""

import struct
import sys
from pathlib import Path

import pytest

from sglang_gemma4.benchmark import frontier, plots, records
from sglang_gemma4.benchmark.results import Results, load
from tests.harness.inputs import bench_synthetic

pytest.importorskip("matplotlib")
ALL = {"sweep-throughput", "step-throughput", "step-time", "ttft", "tpot", "kernels", "accept-length"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench_synthetic.write(tmp_path_factory.mktemp("bench") / "run")


def texts(monkeypatch: pytest.MonkeyPatch, draw: object, results: Results, path: Path) -> str:
    """Every text of a figure as it is saved."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    seen: list[str] = []
    save = Figure.savefig

    def noting(figure: Figure, *arguments: object, **options: object) -> None:
        save(figure, *arguments, **options)  # type: ignore[arg-type]
        seen.extend(found.get_text() for found in figure.findobj(Text) if isinstance(found, Text) and found.get_visible())
        sizes = [float(found.get_fontsize()) for found in figure.findobj(Text) if isinstance(found, Text) and found.get_text()]
        assert min(sizes) >= 11

    monkeypatch.setattr(Figure, "savefig", noting)
    assert draw(results, path)  # type: ignore[operator]
    return "\n".join(seen)


def test_everything_is_drawn_nine_inches_wide(run: Path, tmp_path: Path) -> None:
    drawn = plots.draw(load(run), tmp_path)
    assert {path.stem for path in drawn} == ALL
    for path in drawn:
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        assert width == 1350
        assert 400 < height < 3000


def test_nothing_is_drawn_without_data(tmp_path: Path) -> None:
    records.append(tmp_path / records.NAME, "header", **bench_synthetic.header())
    assert plots.draw(load(tmp_path), tmp_path) == []
    assert list(tmp_path.glob("*.png")) == []


def test_stock_vllm_and_the_package_have_the_same_colours_everywhere() -> None:
    for arms in (["package", "vllm", "stock"], ["stock", "package"], ["package", "stock", "other", "vllm"]):
        assert [plots.look(arms, arm) for arm in arms if arm in plots.SIDES] == [plots.SIDES[arm] for arm in arms if arm in plots.SIDES]
        assert len({plots.look(arms, arm) for arm in arms}) == len(arms), "no two arms look alike"
    assert [plots.look(["a", "b", "stock"], arm) for arm in ("a", "b")] == [0, 1]


def test_a_simulated_accept_length_is_not_drawn(run: Path, tmp_path: Path) -> None:
    """It is the constant that was asked for."""
    found = load(run)
    for arm in found.header["arms"]:
        arm["environment"] = {**arm["environment"], "SGLANG_SIMULATE_ACC_LEN": "2.8"}
    assert not plots.accept_lengths(found, tmp_path / "accept-length.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("plot", "unit"),
    [
        (plots.PLOTS["sweep-throughput"], "output tokens/s"),
        (plots.PLOTS["step-throughput"], "output tokens/s"),
        (plots.PLOTS["step-time"], "ms per step"),
        (plots.PLOTS["ttft"], "TTFT (ms)"),
        (plots.PLOTS["tpot"], "TPOT (ms)"),
        (plots.kernel_shares, "µs per step"),
        (plots.accept_lengths, "tokens per verify step"),
    ],
)
def test_each_names_its_unit_arms_model_and_card(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plot: object, unit: str
) -> None:
    shown = texts(monkeypatch, plot, load(run), tmp_path / "plot.png")
    assert unit in shown
    assert "mtp" in shown
    assert "gemma-4-26B-A4B-it on NVIDIA H200" in shown


def test_kernel_bars_show_shares_totals_and_the_least_time(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = texts(monkeypatch, plots.kernel_shares, load(run), tmp_path / "plot.png").split("\n")
    assert "36%" in shown
    assert "40000 µs" in shown  # of one step, not of all profiled steps
    assert "other" in shown
    assert "kv write" in shown
    assert plots.LEAST in shown


@pytest.mark.parametrize(("share", "shown"), [(0.5, True), (0.99, False), (None, False)])
def test_kernels_side_by_side_show_the_time_with_any_running(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float | None, shown: bool
) -> None:
    results = load(run)
    for record in results.profiles:
        record["busy_microseconds"] = None if share is None else share * sum(kernel["microseconds"] for kernel in record["kernels"])
    text = texts(monkeypatch, plots.kernel_shares, results, tmp_path / "plot.png")
    assert ("20000 busy" in text) is shown
    assert ("busy: with any of them running" in text) is shown


def test_dummy_weights_and_dry_runs_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bench_synthetic.write(tmp_path, arms=("stock",), dummy_weights=True, dry_run=True)
    assert "(dummy weights, dry run)" in texts(monkeypatch, plots.PLOTS["step-time"], load(folder), tmp_path / "plot.png")


def test_without_speculation_there_is_no_accept_length(tmp_path: Path) -> None:
    assert not plots.accept_lengths(load(bench_synthetic.write(tmp_path, arms=("stock", "package"))), tmp_path / "plot.png")


def test_missing_matplotlib_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"sglang-gemma4\[bench\]"):
        plots.require()


def swept(folder: Path) -> Results:
    """Two engines whose longer pauses bring sooner first tokens; and an arm that is on no curve."""
    names = ["stock", *(name.partition(":")[0] for name in frontier.arms(mtp=True, vllm=True))]
    arms = [{"name": name, "environment": {}, "arguments": []} for name in names]
    workload = {"name": "mix", "input_tokens": 6000, "output_tokens": 600, "requests": 120, "concurrency": 80, "images": 0, "image_size": 0}
    records.append(folder / records.NAME, "header", **bench_synthetic.header(arms=arms, workloads=[workload], batches=[]))
    for at, name in enumerate(names):
        step = (at - 1) % 5
        for number in range(2):
            records.append(
                folder / records.NAME, "repetition", arm=name, round=0, workload="mix", repetition=number, counted=True, completed=120,
                output_tokens=27000, output_throughput=(4000.0 if "package" in name else 3300.0) - 60 * (step - 3) ** 2 + number,
                ttft_ms=[100.0] * 100 + [(1500.0 if "package" in name else 1700.0) + 300 * (4 - step)] * 20, tpot_ms=[9.0] * 120,
                itl_ms={"p50": 20.0, "p99": 40.0 * (step + 1) + (20 if "vllm" in name else 0)}, seconds=7.0, accept_length=2.8,
            )  # fmt: skip
    return load(folder)


def test_a_frontier_is_a_curve_of_each_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = swept(tmp_path)
    curves = frontier.curves(found, "mix")
    assert list(curves) == ["package", "vllm"]
    assert [point.setting for point in curves["package"]] == list(frontier.GAPS)
    assert [point.itl.median for point in curves["vllm"]] == [60.0, 100.0, 140.0, 180.0, 220.0]
    assert curves["package"][0].ttft.median == 2700.0
    said = texts(monkeypatch, plots.PLOTS["frontier"], found, tmp_path / "frontier.png")
    assert all(word in said for word in ("this package", "vLLM", "balanced", "16384", "p99 between tokens (ms)", "output tokens/s"))
    assert not plots.PLOTS["frontier"](load(bench_synthetic.write(tmp_path / "run")), tmp_path / "none.png")
