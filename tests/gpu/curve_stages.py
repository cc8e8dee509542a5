"""Stages of ``measure.py`` for batches between the captured sizes: the step time at every batch from 80 to 1.

    python tests/gpu/measure.py FOLDER curve_stages

Arms: ``package`` (the sizes where nothing is said: with MTP SGLang's), ``sizes`` (those of SGLANG_GEMMA4_GRAPH_SIZES=1), ``theirs``
(SGLang's) and ``every`` (each size up to the largest). Prints what capturing cost each arm and the largest cliffs; ``sglang-gemma4 bench
--report FOLDER/STAGE`` plots the curves. The pools suffice for 80 requests of 1,000 tokens and what they generate. ``steps-e4b`` and
``steps-e2b`` time four batch sizes and say what the steps are made of.
"""

from tests.gpu.stages import COMMON, PACKAGE, STOCK, Stage, bench

SIZES, THEIRS, EVERY = "SGLANG_GEMMA4_GRAPH_SIZES=1", "SGLANG_GEMMA4_GRAPH_SIZES=0", "--disable-cuda-graph-padding"
"""SGLang captures every batch size where it may not pad."""
ONE_BY_ONE = f"{COMMON} --disable-prefill-cuda-graph --context-length=16384 --max-running-requests=80 --mem-fraction-static=0.85"
"""One engine at a time, so that the memory of its graphs is its own; without prefill graphs, which this does not time."""
CURVE = "--curve 80 --step-tokens 1000,40 --rounds 1 --repetitions 2"

STAGES: tuple[Stage, ...] = (
    bench(
        "step-curve", 560, "verify steps at every batch size: SGLang's captured sizes, ours, all", "26b-a4b",
        f"{PACKAGE} --arm sizes:package,mtp,{SIZES} --arm every:package,mtp,{EVERY} {CURVE}", ONE_BY_ONE,
    ),
    bench(
        "step-curve-plain", 560, "the same of decode steps without MTP", "26b-a4b",
        f"--arm theirs:package,{THEIRS} --arm package --arm every:package,{EVERY} {CURVE}", ONE_BY_ONE,
    ),
    bench("step-curve-stock", 240, "verify steps of stock at every batch size", "26b-a4b", f"{STOCK} {CURVE}", ONE_BY_ONE),
    *(
        bench(
            f"steps-{model}", 420, f"verify steps of {model.upper()}, kernel by kernel beside their floor", model,
            f"{PACKAGE} --batches 1,8,32,80 --step-tokens 700,80 --rounds 1 --repetitions 3 --profile 1,32,80 "
            "--roofline",
            f"{ONE_BY_ONE} --cuda-graph-bs-decode 1 8 32 80",
        )
        for model in ("e4b", "e2b")
    ),
    bench(
        "step-curve-e4b", 400, "a dense model, whose padding costs less", "e4b",
        f"{PACKAGE} --arm sizes:package,mtp,{SIZES} --arm every:package,mtp,{EVERY} {CURVE}", ONE_BY_ONE,
    ),
)  # fmt: skip
