"""Reading traces: a real one of torch.profiler on the CPU, and one laid out as CUPTI's activities are."""

import gzip
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from sglang_gemma4.benchmark import kernel_categories
from sglang_gemma4.benchmark.profile import profile_stage
from sglang_gemma4.benchmark.trace import Trace, short_names

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int, X)"


def span(name: str, start: float, duration: float, cat: str = "user_annotation", thread: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": duration, "args": args}


def launch(correlation: int, start: float, driver: bool = False) -> dict[str, Any]:
    name, cat = ("cuLaunchKernelEx", "cuda_driver") if driver else ("cudaLaunchKernel", "cuda_runtime")
    return span(name, start, 1, cat, correlation=correlation)


def gpu_trace(path: Path) -> Path:
    """A verify step, a cache flush, a prefill and an idle step; the kernels run later than they were launched."""
    events = [
        span("scheduler.get_next_batch_to_run", 100, 10),
        span("scheduler.run_batch", 110, 90),
        span("step[DRAFT bs=2]", 115, 5),
        span("step[VERIFY bs=2]", 120, 70),
        span("scheduler.idle", 210, 80),
        span("scheduler.process_input_requests", 220, 30),
        span("scheduler.run_batch", 300, 50),
        span("step[EXTEND bs=1 toks=40]", 305, 40),
        span("scheduler.run_batch", 400, 5),
        span("step[IDLE bs=0]", 401, 3),
        span("_fwd_kernel", 112, 38, "kernel", correlation=3),  # launched before the profiler started
        launch(10, 105),
        span("Memcpy HtoD (Pinned -> Device)", 150, 2, "gpu_memcpy", correlation=10),
        launch(11, 130, driver=True),
        span("fused_moe_kernel", 320, 7, "kernel", correlation=11),
        span("cudaGraphLaunch", 140, 1, "cuda_runtime", correlation=12),
        span("fused_moe_kernel", 330, 5, "kernel", correlation=12),
        span(ADD, 335, 3, "kernel", correlation=12),
        launch(13, 225),
        span("Memset (Device)", 400, 1, "gpu_memset", correlation=13),
        launch(14, 310),
        span("_fwd_kernel", 410, 20, "kernel", correlation=14),
        {"ph": "i", "name": "Iteration Start", "ts": 0},
    ]
    return written(path, events)


def written(path: Path, events: list[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    return path


def dependent_launches(path: Path) -> Path:
    """A decode and a prefill step whose kernels start before the one before them has ended, and one kernel on a second stream."""
    return written(
        path,
        [
            span("scheduler.run_batch", 100, 50),
            span("step[DECODE bs=1]", 100, 50),
            span("scheduler.run_batch", 200, 50),
            span("step[EXTEND bs=1 toks=40]", 200, 50),
            *(launch(number, 110 + number) for number in range(5)),
            launch(9, 210),
            span("late", 324, 31, "kernel", correlation=3),  # not in the order of time; past "inside", which ends before "waits"
            span("before", 290, 14, "kernel", correlation=-1),  # launched before the profiler started
            span("first", 300, 10, "kernel", correlation=0),
            span("waits", 305, 25, "kernel", correlation=1),
            span("inside", 307, 5, "kernel", correlation=2),
            span("elsewhere", 300, 20, "kernel", thread=2, correlation=4),
            span("extend", 350, 12, "kernel", correlation=9),
        ],
    )


def test_gpu_kernels_of_all_batches(tmp_path: Path) -> None:
    trace = Trace(gpu_trace(tmp_path / "t.json.gz"))
    rows = trace.kernels()
    assert [(row["name"], row["microseconds"], row["launches"]) for row in rows] == [
        ("_fwd_kernel", 20, 1),
        ("fused_moe_kernel", 12, 2),
        ("vectorized_elementwise_kernel<CUDAFunctor_add>", 3, 1),
        ("Memcpy HtoD (Pinned -> Device)", 2, 1),
        ("Memset (Device)", 1, 1),
    ]
    assert trace.clock == "gpu"
    assert [row["category"] for row in rows] == ["attention", "moe experts", "other", "copy", "copy"]


def test_gpu_kernels_by_stage_and_the_steps(tmp_path: Path) -> None:
    """By the batch that launched them, not by when they ran; what was launched between batches is in neither."""
    trace = Trace(gpu_trace(tmp_path / "t.json.gz"))
    assert [(step.stage, step.batch, step.tokens, step.start) for step in trace.steps] == [
        ("decode", 2, None, 110),
        ("prefill", 1, 40, 300),
    ]
    decode, prefill = trace.kernels("decode"), trace.kernels("prefill")
    assert [(row["microseconds"], row["launches"]) for row in decode] == [(12, 2), (3, 1), (2, 1)]
    assert [(row["name"], row["microseconds"]) for row in prefill] == [("_fwd_kernel", 20)]
    with pytest.raises(ValueError, match="no 'verify' step but decode, prefill"):
        trace.kernels("verify")


def test_overlap_on_a_stream_belongs_to_the_earlier_kernel(tmp_path: Path) -> None:
    trace = Trace(dependent_launches(tmp_path / "t.json.gz"))
    own = {row["name"]: (row["microseconds"], row["launches"]) for row in trace.kernels("decode")}
    assert own == {"first": (6, 1), "waits": (20, 1), "inside": (0, 1), "late": (25, 1), "elsewhere": (20, 1)}
    assert [(row["name"], row["microseconds"]) for row in trace.kernels("prefill")] == [("extend", 7)]


def test_busy_is_the_union_over_streams(tmp_path: Path) -> None:
    trace = Trace(dependent_launches(tmp_path / "t.json.gz"))
    assert trace.busy("decode") == 355 - 300, "from the start of 'elsewhere'"
    assert trace.busy("prefill") == 7, "without what the decode step's kernel has of it"
    assert trace.busy() == 62
    single = Trace(gpu_trace(tmp_path / "s.json.gz"))
    assert single.busy("decode") == sum(row["microseconds"] for row in single.kernels("decode"))
    with pytest.raises(ValueError, match="no 'verify' step"):
        single.busy("verify")


class Engine:
    """Answers what ``profile_stage`` asks of an offline engine, and writes a trace for it."""

    def __init__(self) -> None:
        self.folder = Path()

    def flush_cache(self) -> Any:
        return SimpleNamespace(success=True)

    def generate(self, **_: Any) -> None:
        pass

    def start_profile(self, output_dir: str, **_: Any) -> None:
        self.folder = Path(output_dir)

    def stop_profile(self) -> None:
        dependent_launches(self.folder / "prefill-batch1-TP-0.trace.json.gz")


def test_a_profile_holds_own_times_and_the_busy_time(tmp_path: Path) -> None:
    row = profile_stage(Engine(), "prefill", [[1] * 40], 1, tmp_path)
    assert row["kernels"] == [{"name": "extend", "category": "other", "microseconds": 7, "launches": 1}]
    assert (row["busy_microseconds"], row["clock"], row["context_tokens"]) == (7, "gpu", 40)


def test_real_cpu_trace(tmp_path: Path) -> None:
    """Own times of nested operators add up to the outermost ones, and each operator is counted as often as it ran."""
    path = tmp_path / "cpu.json"
    a = torch.randn(64, 64)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            with record_function("scheduler.run_batch"), record_function("step[DECODE bs=2]"):
                torch.nn.functional.linear(a, a).softmax(-1)
    profiler.export_chrome_trace(str(path))
    trace = Trace(path)
    rows = trace.kernels("decode")
    found = {row["name"]: row for row in rows}
    assert trace.clock == "cpu"
    assert trace.busy("decode") is None
    assert [(step.stage, step.batch) for step in trace.steps] == [("decode", 2)] * 3
    assert found["aten::mm"]["launches"] == found["aten::_softmax"]["launches"] == found["aten::linear"]["launches"] == 3
    assert (found["aten::mm"]["category"], found["aten::_softmax"]["category"]) == ("dense gemm", "logits")
    outermost = trace.events[(trace.events["cat"] == "cpu_op") & trace.events["name"].isin(["aten::linear", "aten::softmax"])]
    assert len(outermost) == 6
    assert sum(row["microseconds"] for row in rows) == pytest.approx(outermost["dur"].sum(), abs=0.1)


@pytest.mark.parametrize("content", ["no json", '{"events": []}', "[1]"])
def test_not_a_trace(content: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(ValueError, match=r"t\.json is not a Chrome trace"):
        Trace(tmp_path / "t.json")


def test_names_stay_apart() -> None:
    names = [
        ADD,
        ADD.replace("CUDAFunctor_add", "FillFunctor"),
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_64x64>(cutlass_80_tensorop_bf16_s16816gemm_64x64::Params)",
        "void flash::fwd<Traits<256> >(P)",
        "void flash::fwd<Traits<512> >(P)",
        "Memcpy DtoH (Device -> Pinned)",
        "void (anonymous namespace)::rmsnorm_cta<2816l, true, __nv_bfloat16>(X)",
        "_fwd_grouped_kernel_stage1",
    ]
    short = list(short_names(names).values())
    assert short[:3] == [
        "vectorized_elementwise_kernel<CUDAFunctor_add>",
        "vectorized_elementwise_kernel<FillFunctor>",
        "Kernel2<cutlass_80_tensorop_bf16_s16816gemm_64x64>",
    ]
    assert short[3] != short[4]
    assert all(name.startswith("fwd<Traits> #") for name in short[3:5])
    assert short[5:] == ["Memcpy DtoH (Device -> Pinned)", "rmsnorm_cta", "_fwd_grouped_kernel_stage1"]


@pytest.mark.parametrize(
    ("category", "names"),
    [
        ("moe experts", ["fused_moe_kernel"]),
        (
            "moe routing",
            [
                "_gemma4_routing_kernel",
                "void moe_align_block_size_kernel<int>(X)",
                "moe_sum_reduce_warp_per_token_vec_kernel",
                "_expert_routing_kernel",
                "_routed_product_kernel",
            ],
        ),
        ("attention", ["_fwd_kernel", "_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2", "create_flashinfer_kv_indices_triton"]),
        (
            "dense gemm",
            [
                "nvjet_tst_64x8_64x16_2x1_v_bz_splitK_TNT",
                "void cublasLt::splitKreduce_kernel<32, 16>(X)",
                "gemv2T_kernel_val",
                "_few_row_linear_kernel",
            ],
        ),
        ("norm", ["void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(X)", "_gemma_dual_rmsnorm_residual_kernel", "rmsnorm_cta_wide"]),
        ("activation", ["void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &(float gelu_tanh<float>(float const&))>(X)"]),
        ("rope", ["rotary_embedding_kernel", "fused_rope_kernel"]),
        ("kv write", ["store_kvcache_kernel", "fused_rope_store_kernel"]),
        (
            "logits",
            ["softcap_inplace_logits_kernel", "at::native::ArgMaxOps<float>", "cunn_SoftMaxForward", "_draft_topk1_finalize_kernel"],
        ),
        ("speculation", ["build_tree_efficient", "VerifyTreeGreedy", "_verify_commit_outputs_kernel", "_build_chain_tree_kernel"]),
        ("copy", ["Memcpy DtoD (Device -> Device)", "at::native::direct_copy_kernel_cuda", "vectorized_gather_kernel"]),
        ("collective", ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL(X)", "cross_device_reduce_1stage"]),
        ("other", [ADD, "alloc_decode_kernel"]),
    ],
)
def test_categories(category: str, names: list[str]) -> None:
    assert {name: kernel_categories.category(name) for name in names} == dict.fromkeys(names, category)
    assert category in kernel_categories.CATEGORIES


def record(**more: Any) -> dict[str, Any]:
    rows = [{"name": f"k{i}", "category": "other", "microseconds": 0.25, "launches": 4} for i in range(40)]
    rows += [
        {"name": "fused_moe_kernel", "category": "moe experts", "microseconds": 600.0, "launches": 60},
        {"name": "nvjet", "category": "dense gemm", "microseconds": 390.0, "launches": 10},
    ]
    base = {"stage": "decode", "batch": 8, "context_tokens": 900, "tokens_per_request": 4, "steps": 2, "kernels": rows, "roofline": None}
    return {**base, **more}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"clock": "gpu"}, "; GPU kernels, sum of durations that may overlap: 500.0 µs a step (mean of 2)"),
        ({"clock": "gpu", "busy_microseconds": 1000.0}, "; GPU kernels: 500.0 µs a step (mean of 2)"),
        (
            {"clock": "gpu", "busy_microseconds": 900.0},
            "; GPU kernels: 500.0 µs a step summed over all streams, 450.0 µs a step with any of them busy (mean of 2)",
        ),
        ({"clock": "cpu", "busy_microseconds": None}, "; CPU operators, own time: 500.0 µs a step (mean of 2)"),
        ({"clock": "cpu"}, "; CPU operators, own time: 500.0 µs a step (mean of 2)"),
    ],
)
def test_table_says_what_its_times_are(more: dict[str, Any], said: str) -> None:
    assert kernel_categories.table(record(**more)).splitlines()[0].endswith(said)


def test_table_folds_the_tail() -> None:
    text = kernel_categories.table(record())
    assert "| `fused_moe_kernel` | moe experts | 30.0 | 300.0 | 60.0% |" in text
    assert "| 40 more kernels |  | 80.0 | 5.0 | 1.0% |" in text
    assert "| other | 80.0 | 5.0 | 1.0% |" in text


def test_table_beside_the_roofline() -> None:
    floors = [
        {"category": "moe experts", "bytes": 4e8, "flops": 5e9, "microseconds": 100.0},
        {"category": "dense gemm", "bytes": 2e8, "flops": 1e9, "microseconds": 50.0},
        {"category": "rope", "bytes": 1e5, "flops": 0.0, "microseconds": 0.1},
    ]
    card = {"bandwidth_gbs": 4000.0, "teraflops": 800.0, "source": "measured on CUDA: x"}
    text = kernel_categories.table(record(roofline={**card, "categories": floors}))
    assert "| moe experts | 30.0 | 300.0 | 60.0% | 400.00 | 5.000 | 100.0 | 3.00 |" in text
    assert "| other | 80.0 | 5.0 | 1.0% | – | – | – | – |" in text
    assert "| rope | 0.0 | 0.0 | 0.0% | 0.10 | 0.000 | 0.1 | – |" in text
    assert re.search(r"\| all \| [\d.]+ \| 500\.0 \| 100\.0% \| 600\.10 \| 6\.000 \| 150\.1 \| 3\.33 \|", text)
    assert text.count("| all |") == 1
    assert "one floor, which all its kernels share" in text
    experts = "Experts: expected distinct experts under uniform routing; tokens that route alike need fewer"
    assert experts in text
    assert experts not in kernel_categories.table(record(roofline={**card, "categories": floors[1:]})), "a model without experts"


@pytest.mark.parametrize(
    ("stage", "steps", "prompts"), [("verify", 1, [[1]]), ("decode", 0, [[1]]), ("decode", 1, []), ("prefill", 1, [[]])]
)
def test_bad_requests_reach_no_engine(stage: str, steps: int, prompts: list[list[int]], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"verify|cannot be profiled"):
        profile_stage(None, stage, prompts, steps, tmp_path)
