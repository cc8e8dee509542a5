"""Stages of ``measure.py`` for quantised weights: 26B-A4B, spread weights, on one card of 80 GB or more.

    python tests/gpu/measure.py FOLDER quant_stages

``fp8-steps``: compressed-tensors' FP8 (a scale for each output), stock beside the package; ``bf16-steps``: the package's own bfloat16 at
the same batches, alone, since two models do not fit; ``fp8-pair``: both fp8 engines at a time over shorter contexts; ``fp8-online``:
``--quantization fp8``, which holds the bfloat16 weights while it loads (49 GiB), so one engine at a time; ``int4-steps``: 4 bits in groups
of 32, where what multiplies by wgmma wants Triton's ptxas-blackwell where Triton has it, and declines without. The drafts are simulated
(accept length 2.8), and the assistant stays in bfloat16 in every arm. Tests have no dry run, nor has online fp8, which a flag asks for.
"""

import shlex
from dataclasses import replace

from tests.gpu.stages import COMMON, OUT, PYTHON, Stage, bench, tests

BATCHES = "--cuda-graph-bs-decode 1 8 32 80"
ONE = f"{COMMON} --disable-prefill-cuda-graph --context-length=4096 --max-running-requests=80 {BATCHES}"
POOL = "--max-total-tokens=66000 --swa-full-tokens-ratio=1.0 --mem-fraction-static=0.93"
"""For 80 requests of 780 tokens: 14 GiB."""
PROFILED = POOL.replace("66000", "84000")
"""A profiled request generates up to 288 tokens behind its prompt: 80 of 1,000."""
PAIR = f"{ONE} --max-total-tokens=33000 --swa-full-tokens-ratio=1.0 --mem-fraction-static=0.97 --sleep-on-idle"
"""Two engines of 27 GiB of weights with 7 GiB of KV each."""
SERVE = f"{COMMON} --context-length=16384 --max-running-requests=64 --mem-fraction-static=0.85"
G = "SGLANG_GEMMA4"
DRAFT = "--speculative-draft-model-quantization=unquant"
FIXED = f"--arm fixed:stock,mtp,{DRAFT},{G}_MODEL_FIXES=1,{G}_CONFIGS=1"
"""Stock's kernels of 4-bit experts with the patch without which its first batch ends the server."""
STOCK, PACKAGE = f"--arm stock:stock,mtp,{DRAFT}", f"--arm package:package,mtp,{DRAFT}"
MARLIN = f"--arm marlin:package,mtp,{DRAFT},{G}_FOUR_BIT_ROWS=0"
"""4-bit dense products by SGLang's kernel, which nvcc compiles for four minutes in a first start."""
STEPS = "--batches 1,8,32,80 --step-tokens 700,80 --rounds 1 --repetitions 3"
FP8, INT4 = "--quantization fp8-dynamic", "--quantization w4a16-g32"
ONLINE = "--quantization=fp8"
LOADS = "--workload prefill,mix,32x1000/200 --rounds 1 --repetitions 3"
STEPS_2 = f"--arm steps:package,mtp,{DRAFT},{G}_BESIDE_GAP=2"
"""Gaps of two plain decode steps, the default before gaps of 50 ms."""
WIDE = "'26B qkv, sliding' '26B o, full' '26B gate and up' '26B down'"


def off(name: str, patch: str) -> str:
    """An arm without one patch."""
    return f"--arm {name}-off:package,mtp,{DRAFT},{G}_WITHOUT={patch}"


def online(arm: str) -> str:
    """An arm whose weights are quantised while they are loaded; not the assistant's."""
    return arm.replace(DRAFT, f"{DRAFT},{ONLINE}")


def sweep(name: str, seconds: int, decides: str, words: str) -> Stage:
    """Single kernels, by a case whose axes have names with spaces."""
    start = (PYTHON, "-m", "sglang_gemma4.benchmark.kernels", *shlex.split(words))
    return Stage(name, seconds, decides, ((*start, "--raw", f"{OUT}/{name}.jsonl"),), dry=((*start, "--dry-run"),))


def steps(name: str, seconds: int, decides: str, words: str, flags: str) -> Stage:
    """A bench of 26B-A4B; its dry run has no stock, which crashes with MTP where drafting and scheduling do not overlap, as on a CPU."""
    without = words.replace(STOCK, "").replace(FIXED, "")
    made = bench(name, seconds, decides, "26b-a4b", words, flags)
    (dry,) = bench(name, seconds, decides, "26b-a4b", without, flags).dry
    return replace(made, dry=() if ONLINE in words else (dry,))


STAGES: tuple[Stage, ...] = (
    tests("quant-tests", 300, "kernels of fp8 weights against float32", "-n 8 tests/gpu/test_kernels_quantised.py", beside=False),
    sweep("quant-linear", 150, "fp8 products of few rows against SGLang's and ours of bfloat16",
          f"linear-fp8 --rows 1 4 16 32 64 --product {WIDE}"),
    sweep("quant-linear-tiles", 150, "their tiles", f"linear-fp8 --rows 1 4 32 --product {WIDE} --tune 8"),
    sweep("quant-experts", 150, "fp8 experts against SGLang's and ours of bfloat16", "experts-fp8 --scales output"),
    sweep("quant-experts-tiles", 150, "their tiles", "experts-fp8 --scales output --tokens 4 32 320 --tune 30"),
    steps("fp8-steps", 560, "README: steps with MTP of fp8, stock beside", f"{FP8} {STOCK} {PACKAGE} {STEPS}", f"{ONE} {POOL}"),
    steps("bf16-steps", 300, "the same steps in bfloat16", f"--arm package:package,mtp {STEPS}", f"{ONE} {POOL}"),
    steps("fp8-pair", 320, "both fp8 engines at a time",
          f"{FP8} --together 2 {STOCK} {PACKAGE} --batches 1,8,32,80 --step-tokens 300,80 --repetitions 3", PAIR),
    steps("fp8-profile", 300, "what an fp8 step is made of, beside the GPU's floor",
          f"{FP8} {STOCK} {PACKAGE} --batches 1,32 --step-tokens 700,80 --rounds 1 --repetitions 1 --profile 1,8,32,80 --roofline",
          f"{ONE} {PROFILED}"),
    steps("fp8-pieces", 560, "what each kernel adds to a step of fp8",
          f"{FP8} --together 2 {PACKAGE} {off('rows', 'few_row_linear')} {off('tokens', 'few_token_experts')} "
          f"{off('groups', 'grouped_experts')} {off('overlap', 'dense_beside_experts')} --batches 1,8,32,80 --step-tokens 300,80 "
          "--repetitions 3", PAIR),
    sweep("int4-experts", 300, "4-bit experts against SGLang's Triton and Marlin and ours of bfloat16", "experts-int4"),
    sweep("linear-int4", 200, "4-bit dense products: ours, Marlin's, and written out for cuBLAS, by rows",
          f"linear-int4 --rows 1 4 16 32 64 128 320 2048 --product {WIDE}"),
    sweep("linear-int4-tiles", 200, "their tiles", f"linear-int4 --rows 1 4 32 --product {WIDE} --tune 8"),
    steps("int4-dense", 400, "4-bit dense products as loaded against Marlin's, in steps",
          f"{INT4} {PACKAGE} {MARLIN} {STEPS}", f"{ONE} {POOL}"),
    tests("chunk-tests", 200, "4-bit experts of chunks by wgmma", "-n 8 tests/gpu/test_kernels_warpgroups.py", beside=False),
    sweep("int4-prefill", 200, "the same of a prefill chunk: from where writing out pays; Marlin's would be compiled for minutes",
          "experts-int4-prefill --ways Triton ours writing registers"),
    sweep("int4-prefill-tiles", 150, "its tiles by wgmma, and from where writing out pays",
          "experts-int4-prefill --tokens 1024 2048 4096 --ways ours registers --tune 25 --compilers 12"),
    steps("int4-copies", 420, "steps of 4 bits with and without copies of dense weights",
          f"{INT4} --together 2 {PACKAGE} {off('copies', 'dense_copies')} --batches 8,16,32,80 --step-tokens 300,80 --repetitions 5",
          PAIR.replace(" 1 8 32 80", " 8 16 32 80")),
    steps("int4-gaps-serve", 560, "a server of 4 bits, at gaps of two plain steps, and without copies of dense weights",
          f"{INT4} {PACKAGE} {STEPS_2} {off('copies', 'dense_copies')} {LOADS}", SERVE),
    steps("gaps-serve", 480, "the same of bfloat16", f"{PACKAGE} {STEPS_2} {LOADS}".replace(f",{DRAFT}", ""), SERVE),
    sweep("int4-experts-tiles", 150, "their tiles", "experts-int4 --tokens 4 32 320 --tune 30"),
    *(
        steps(f"{name}-registers", 420, f"steps of {what} through registers and by Triton, beside the GPU's floor",
              f"{form} {PACKAGE} {off('registers', 'register_products')} {STEPS} --profile 1,32 --roofline", f"{ONE} {PROFILED}")
        for name, what, form in (("fp8", "fp8", FP8), ("int4", "4 bits", INT4))
    ),
    steps("int4-steps", 580, "README: steps with MTP of 4 bits, stock's kernels beside", f"{INT4} {FIXED} {PACKAGE} {STEPS}",
          f"{ONE} {POOL}"),
    steps("int4-profile", 300, "what a step of 4 bits is made of, beside the GPU's floor, with Marlin's dense products and with ours",
          f"{INT4} {PACKAGE} {MARLIN} --batches 1,32 --step-tokens 700,80 --rounds 1 --repetitions 1 --profile 1,8,32,80 --roofline",
          f"{ONE} {PROFILED}"),
    steps("int4-serve", 580, "README: a server of 4 bits, its long prefills with weights written out and by the kernels of few rows",
          f"{INT4} {off('written', 'prefill_experts')} {PACKAGE} --workload prefill,mix,32x1000/200 --rounds 1 --repetitions 3", SERVE),
    steps("fp8-online", 580, "the same of --quantization fp8", f"{online(STOCK)} {online(PACKAGE)} {STEPS}", f"{ONE} {POOL}"),
    steps("fp8-scales", 420, "what the KV scales of 1 that SGLang gives --quantization fp8 take away",
          f"{online(PACKAGE)} {online(off('scales', 'unit_kv_scales'))} {STEPS}", f"{ONE} {POOL}"),
)  # fmt: skip
