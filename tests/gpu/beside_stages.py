"""Stages of ``measure.py`` for prefill beside verify, which is on where it was measured: 26B-A4B on one Hopper card.

    python tests/gpu/measure.py FOLDER beside_stages

Arms: ``in-turn`` (prefill and verify in turn), ``beside``, and ``bound-1.5``, ``bound-4`` (the gap between two tokens of a running request
in plain steps). A bench's folder has TTFT and inter-token latency beside tokens/s: ``sglang-gemma4 bench --report FOLDER/STAGE``.
"""

from tests.gpu.stages import COMMON, SHARED, SMALL, Stage, bench, engines, tests

SWITCH, GAP = "SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY=1", "SGLANG_GEMMA4_BESIDE_GAP"
OFF = "SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY=0"
IN_TURN = f"--arm in-turn:package,mtp,{OFF}"
BESIDE = f"--arm beside:package,mtp,{SWITCH}"
UNIFIED = "--enable-unified-memory"
WIDE = f"--arm bound-4:package,mtp,{SWITCH},{GAP}=4"
BOUNDS = f"--arm bound-1.5:package,mtp,{SWITCH},{GAP}=1.5 {WIDE}"
TOGETHER = (
    f"{COMMON} --context-length=16384 --max-running-requests=80 --max-total-tokens=200000 --swa-full-tokens-ratio=0.45 "
    "--mem-fraction-static=0.95 --sleep-on-idle"
)
"""Three servers over one copy of the weights, with the decode graphs that an operator gets."""

STAGES: tuple[Stage, ...] = (
    tests("beside-tests", 420, "prefill beside verify works on a GPU, without waits", *engines("prefill_beside_gpu"), beside=False),
    bench(
        "beside-mix", 420, "requests of mixed lengths while others run", "26b-a4b",
        f"{SHARED} {IN_TURN} {BESIDE} {WIDE} --workload mix,32x1000/200 --repetitions 3", TOGETHER,
    ),
    bench(
        "beside-32", 300, "32 prompts of 1,000 tokens at once; decode steps, which must not change", "26b-a4b",
        f"{SHARED} {IN_TURN} {BESIDE} --workload 32x1000/200 --batches 1,32 --step-tokens 300,150 --repetitions 3", TOGETHER,
    ),
    bench(
        "beside-bounds", 500, "what the bound on gaps does", "26b-a4b",
        f"{SHARED} {IN_TURN} {BESIDE} {BOUNDS} --workload mix --repetitions 2", TOGETHER,
    ),
    bench(
        "beside-load", 500, "open loop: TTFT and inter-token latency by rate", "26b-a4b",
        f"{SHARED} {IN_TURN} {BESIDE} --workload log-uniform --rates 2,4,8 --repetitions 1", TOGETHER,
    ),
    bench(
        "beside-plain", 300, "plain decoding", "26b-a4b",
        f"{SHARED} --arm in-turn:package,{OFF} --arm beside:package,{SWITCH} --workload mix --repetitions 2", TOGETHER,
    ),
    bench(
        "beside-unified", 400, "one memory for full and sliding layers", "26b-a4b",
        f"{SHARED} {IN_TURN},{UNIFIED} {BESIDE},{UNIFIED} --workload mix,32x1000/200 --repetitions 3", TOGETHER,
    ),
    bench(
        "beside-e4b", 400, "a model whose layers share KV", "e4b",
        f"--together {IN_TURN} {BESIDE} --workload mix --repetitions 3", SMALL,
    ),
)  # fmt: skip
