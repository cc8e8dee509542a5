"""What a kernel is for, judged by its name; and the kernel table of a ``profile`` record."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

from sglang_gemma4.benchmark import results as markdown
from sglang_gemma4.benchmark.records import Record

# The first match wins; case is ignored. Names are those of SGLang 0.5.23 on Gemma 4's paths (Triton attention and
# experts, its JIT kernels, sgl_kernel), of PyTorch, cuBLAS, FlashInfer and FlashAttention, and of CPU operators. The
# latter say less: experts are aten::mm too.
PATTERNS: tuple[tuple[str, str], ...] = (
    ("collective", r"nccl|all_?reduce|all_?gather|reduce_scatter|cross_device|multimem|one_?shot|two_?shot|^c10d::"),
    (
        "moe experts",
        r"fused_moe_kernel|grouped_gemm|group_gemm|moe_?gemm|bmm_.*(moe|swiglu|geglu)|fused_experts"
        r"|_gated_experts_kernel|_register_(gated|down)_kernel|^_down_kernel|_down_and_sum_kernel|^gate_and_up_kernel|^down_rows_kernel",
    ),
    (
        "moe routing",
        r"moe_align|count_and_sort|moe_?sum|sum_reduce|topk_sum_kernel|gemma4?_routing|router|moe_?topk|topk_?gating|moe_?softmax"
        r"|moe_(permute|sort|front|fused_gate|finalize)|ep_(scatter|gather)|_expert_blocks|_expert_routing|_routed_product|^_sum_kernel",
    ),
    (
        "speculation",
        r"build_(chain_)?tree|verify_?tree|tree_?speculative|verify_commit|pack_verify_mask|tree_mask|draft_extend|simulated_accept"
        r"|gather_rows_kernel|speculative|accept_(index|length|token)|cache_locs|fill_.*(accept|bonus)|frozen_kv",
    ),
    ("kv write", r"store_kv_?cache|set_kv_buffer|store_cache|reshape_and_cache|rope_(scale_)?store|kv_?cache_write|write_kv"),
    ("rope", r"rotary|rope"),
    ("norm", r"rms_?norm|layer_?norm|qk_?norm|normkernel|^_tail_kernel|^tail_rows_kernel"),
    (
        "attention",
        r"^_fwd_|attention|attn|splitkv|fmha|flash_fwd|flash::|batch(prefill|decode)with|merge_state|kv_indices|kv_read_indices|num_kv_splits"
        r"|decode_metadata|page_table|page_rows|^_join_kernel|unified_indices|window_kv",
    ),
    ("activation", r"act_and_mul|act_kernel|gelu|silu|swiglu|geglu"),
    (
        "logits",
        r"soft_?cap|soft_?max|arg_?max|maxops|sampl|top_?k|top_?p|multinomial|kthvalue|radix_?sort|bitonic|aten::(tanh|max|sort)$|exponential",
    ),
    (
        "dense gemm",
        r"gemm|gemv|(few_row|four_bit|register|wide)_linear|nvjet|cublas|splitk(?!v)|xmma|cutlass|dot_kernel|matmul|aten::(mm|bmm|addmm|baddbmm|linear|mv|dot)(_out)?$|mkldnn.*linear",
    ),
    (
        "copy",
        r"memcpy|memset|copy|catarray|_by_place|_by_span|index|gather|scatter|fill|embedding"
        r"|aten::(cat|stack|clone|to|zero_|masked_fill_|where|contiguous|arange)$",
    ),
)
OTHER = "other"
CATEGORIES: tuple[str, ...] = (*(name for name, _ in PATTERNS), OTHER)
_COMPILED = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in PATTERNS)

LEAST_SHARE = 0.004
MOST_ROWS = 30
"""The table names at most this many kernels, those with at least this share of the time, and sums up the rest."""


def category(name: str) -> str:
    """One of :data:`CATEGORIES` for a kernel's or CPU operator's full name; "other" where no pattern fits."""
    return next((found for found, pattern in _COMPILED if pattern.search(name)), OTHER)


def table(record: Record) -> str:
    """A ``profile`` record (``records.py``) as Markdown: kernels, then categories, with their floors if there is a roofline."""
    steps, kernels = record["steps"], sorted(record["kernels"], key=lambda row: -row["microseconds"])
    total = sum(row["microseconds"] for row in kernels) or 1.0

    def measured(rows: Sequence[Record]) -> list[str]:
        launches, spent = (sum(row[name] for row in rows) for name in ("launches", "microseconds"))
        return [f"{launches / steps:,.1f}", f"{spent / steps:,.1f}", f"{spent / total:.1%}"]

    named = [row for row in kernels[:MOST_ROWS] if row["microseconds"] >= LEAST_SHARE * total]
    rest = kernels[len(named) :]
    rows = [[f"`{_shown(row['name'])}`", row["category"], *measured([row])] for row in named]
    rows += [[f"{len(rest)} more kernels", "", *measured(rest)]] if rest else []
    head = (
        f"{record['stage']}, batch {record['batch']}, {record['context_tokens']} tokens of context, "
        f"{record['tokens_per_request']} query tokens a request; {_header_time(record, total)} (mean of {steps})"
    )
    columns = ["launches/step", "µs/step", "share"]
    return "\n\n".join([head, markdown.table(["kernel", "category", *columns], rows, 3), *_by_category(record, columns, measured)]) + "\n"


def _by_category(record: Record, columns: list[str], measured: Callable[[Sequence[Record]], list[str]]) -> list[str]:
    """The table of categories, with their floors if there is a roofline, followed by how to read them."""
    roofline, groups = record.get("roofline"), defaultdict(list)
    for row in record["kernels"]:
        groups[row["category"]].append(row)
    found = sorted(groups, key=lambda name: -sum(row["microseconds"] for row in groups[name]))
    if roofline is None:
        rows = [[name, *measured(groups[name])] for name in found]
        return [markdown.table(["category", *columns], [*rows, ["all", *measured(record["kernels"])]], 3)]
    floors = {row["category"]: row for row in roofline["categories"]}
    whole = {name: sum(row[name] for row in floors.values()) for name in ("bytes", "flops", "microseconds")}
    parts = [(name, groups[name], floors.get(name)) for name in dict.fromkeys([*found, *floors])] + [("all", record["kernels"], whole)]
    rows = [[name, *measured(own), *_floor(own, floor, record["steps"])] for name, own, floor in parts]
    columns = [*columns, "least MB", "least GFLOP", "floor µs", "measured/floor"]
    note = (
        "A category has one floor, which all its kernels share: the longer of its least bytes and its least FLOPs at "
        f"{roofline['bandwidth_gbs']:,.0f} GB/s and {roofline['teraflops']:,.4g} TFLOP/s ({roofline['source']}). "
        "All matrix products but the experts' stand under dense gemm, the LM head and the router included."
    )
    if "moe experts" in floors:
        note += " Experts: expected distinct experts under uniform routing; tokens that route alike need fewer."
    if record.get("clock") == "cpu":
        note += " CPU operators say less: GEMMs of experts and attention are dense gemm too, norms are other."
    return [markdown.table(["category", *columns], rows, 7), note]


def _floor(rows: Sequence[Record], floor: Record | None, steps: int) -> list[str]:
    if floor is None:
        return ["–"] * 4
    spent = sum(row["microseconds"] for row in rows) / steps
    ratio = f"{spent / floor['microseconds']:,.2f}" if spent and floor["microseconds"] else "–"
    return [f"{floor['bytes'] / 1e6:,.2f}", f"{floor['flops'] / 1e9:,.3f}", f"{floor['microseconds']:,.1f}", ratio]


def counted(record: Record) -> str:
    """A few words on what the times of a ``profile`` record count; those without ``busy_microseconds`` are older than own times."""
    if record.get("clock") == "cpu":
        return "CPU operators, own time"
    return "GPU kernels" if "busy_microseconds" in record else "GPU kernels, sum of durations that may overlap"


def _header_time(record: Record, total: float) -> str:
    summed = f"{total / record['steps']:,.1f} µs a step"
    busy = record.get("busy_microseconds")
    shown = summed if busy is None else f"{busy / record['steps']:,.1f} µs a step"
    both = f"{summed} summed over all streams, {shown} with any of them busy"
    return f"{counted(record)}: {summed if shown == summed else both}"


def _shown(name: str) -> str:
    """A kernel's name for the table, without the layouts of arguments that CuTe DSL writes into it."""
    return name.removeprefix("kernel_cutlass_kernel_").split("_object_at_")[0]
