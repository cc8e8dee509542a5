"""What a kernel is for, told by its name; and the kernel table of a ``profile`` record."""

import re
from collections import defaultdict
from typing import Any

# First match wins, upper and lower case alike. Names are those of SGLang 0.5.23 on Gemma 4's paths (Triton attention and experts, its JIT
# kernels, sgl_kernel), of PyTorch, cuBLAS, FlashInfer and FlashAttention, and of CPU operators, which say less: experts are aten::mm too.
PATTERNS: tuple[tuple[str, str], ...] = (
    ("collective", r"nccl|all_?reduce|all_?gather|reduce_scatter|cross_device|multimem|one_?shot|two_?shot|^c10d::"),
    (
        "moe experts",
        r"fused_moe_kernel|grouped_gemm|group_gemm|moe_?gemm|bmm_.*(moe|swiglu|geglu)|fused_experts"
        r"|_gated_experts_kernel|^_down_kernel|_down_and_sum_kernel|^gate_and_up_kernel|^down_rows_kernel",
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
        r"gemm|gemv|few_row_linear|nvjet|cublas|splitk(?!v)|xmma|cutlass|dot_kernel|matmul|aten::(mm|bmm|addmm|baddbmm|linear|mv|dot)(_out)?$|mkldnn.*linear",
    ),
    (
        "copy",
        r"memcpy|memset|copy|catarray|index|gather|scatter|fill|embedding"
        r"|aten::(cat|stack|clone|to|zero_|masked_fill_|where|contiguous|arange)$",
    ),
)
OTHER = "other"
CATEGORIES: tuple[str, ...] = (*(name for name, _ in PATTERNS), OTHER)
_COMPILED = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in PATTERNS)

LEAST_SHARE = 0.004
MOST_ROWS = 30
"""The table names kernels of at least this share of the time, this many at most, and sums the rest up."""


def category(name: str) -> str:
    """One of :data:`CATEGORIES` for a kernel's or CPU operator's full name; "other" where no pattern fits."""
    return next((found for found, pattern in _COMPILED if pattern.search(name)), OTHER)


def table(record: dict[str, Any]) -> str:
    """A ``profile`` record (``records.py``) as Markdown: kernels, then categories, beside their floors where there is a roofline."""
    steps, rows = record["steps"], sorted(record["kernels"], key=lambda row: -row["microseconds"])
    total = sum(row["microseconds"] for row in rows) or 1.0
    lines = [
        f"{record['stage']}, batch {record['batch']}, {record['context_tokens']} tokens of context, "
        f"{record['tokens_per_request']} query tokens a request; {_header_time(record, total)} (mean of {steps})",
        "",
        "| kernel | category | launches/step | µs/step | share |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    named = [row for row in rows[:MOST_ROWS] if row["microseconds"] >= LEAST_SHARE * total]
    for row in named:
        named_so = f"`{_shown(row['name'])}` | {row['category']}"
        lines.append(_kernel_row(named_so, row["launches"], row["microseconds"], steps, total))
    rest = rows[len(named) :]
    if rest:
        launches, spent = sum(row["launches"] for row in rest), sum(row["microseconds"] for row in rest)
        lines.append(_kernel_row(f"{len(rest)} more kernels | ", launches, spent, steps, total))
    return "\n".join([*lines, "", *_category_lines(record, total)]) + "\n"


def counted(record: dict[str, Any]) -> str:
    """What the times of a ``profile`` record are, in a few words; those without ``busy_microseconds`` are older than own times."""
    if record.get("clock") == "cpu":
        return "CPU operators, own time"
    return "GPU kernels" if "busy_microseconds" in record else "GPU kernels, sum of durations that may overlap"


def _header_time(record: dict[str, Any], total: float) -> str:
    summed = f"{total / record['steps']:,.1f} µs a step"
    busy = record.get("busy_microseconds")
    shown = summed if busy is None else f"{busy / record['steps']:,.1f} µs a step"
    if shown != summed:
        return f"{counted(record)}: {summed} summed over all streams, {shown} with any of them busy"
    return f"{counted(record)}: {summed}"


def _shown(name: str) -> str:
    """CuTe DSL writes the layout of every argument into a kernel's name; the table does without."""
    return name.removeprefix("kernel_cutlass_kernel_").split("_object_at_")[0]


def _kernel_row(name: str, launches: int, microseconds: float, steps: int, total: float) -> str:
    return f"| {name} | {launches / steps:,.1f} | {microseconds / steps:,.1f} | {microseconds / total:.1%} |"


def _category_lines(record: dict[str, Any], total: float) -> list[str]:
    spent: dict[str, float] = defaultdict(float)
    launched: dict[str, int] = defaultdict(int)
    for row in record["kernels"]:
        spent[row["category"]] += row["microseconds"]
        launched[row["category"]] += row["launches"]
    roofline, steps, every = record.get("roofline"), record["steps"], sum(launched.values())
    if roofline is None:
        rows = [_kernel_row(name, launched[name], spent[name], steps, total) for name in _by_time(spent)]
        return [
            "| category | launches/step | µs/step | share |",
            "| --- |" + " ---: |" * 3,
            *rows,
            _kernel_row("all", every, total, steps, total),
        ]
    floors = {row["category"]: row for row in roofline["categories"]}
    lines = [
        "| category | launches/step | µs/step | share | least MB | least GFLOP | floor µs | measured/floor |",
        "| --- |" + " ---: |" * 7,
    ]
    for name in [*_by_time(spent), *(name for name in floors if name not in spent)]:
        lines.append(_floor_row(name, launched.get(name, 0), spent.get(name, 0.0), floors.get(name), steps, total))
    keys = ("bytes", "flops", "microseconds")
    lines.append(_floor_row("all", every, total, {key: sum(row[key] for row in floors.values()) for key in keys}, steps, total))
    cpu = record.get("clock") == "cpu"
    told = " CPU operators say less: products of experts and attention are dense gemm too, norms are other." if cpu else ""
    routed = "expected distinct experts under uniform routing; tokens that route alike need fewer"
    card = f"{roofline['bandwidth_gbs']:,.0f} GB/s and {roofline['teraflops']:,.4g} TFLOP/s"
    return [
        *lines,
        "",
        f"A category has one floor, which all its kernels share: the longer of its least bytes and its least FLOPs at {card}"
        f" ({roofline['source']}). All matrix products but the experts' stand under dense gemm, the LM head and the router included."
        + (f" Experts: {routed}." if "moe experts" in floors else "")
        + told,
    ]


def _by_time(spent: dict[str, float]) -> list[str]:
    return sorted(spent, key=lambda name: -spent[name])


def _floor_row(name: str, launches: int, spent: float, floor: dict[str, Any] | None, steps: int, total: float) -> str:
    measured = _kernel_row(name, launches, spent, steps, total)
    if floor is None:
        return f"{measured} – | – | – | – |"
    ratio = f"{spent / steps / floor['microseconds']:,.2f}" if spent and floor["microseconds"] else "–"
    return f"{measured} {floor['bytes'] / 1e6:,.2f} | {floor['flops'] / 1e9:,.3f} | {floor['microseconds']:,.1f} | {ratio} |"
