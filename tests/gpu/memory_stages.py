"""Stages of ``measure.py`` for the KV pools: one card of 80 GB, and the pools of smaller cards.

    python -m tests.gpu.memory_stages FOLDER [STAGE ...] [--dry-run]

On a card of 141 GB ``one-window-80gb`` and ``cells-80gb`` have the pools of one of 80. Arms: ``stock``, ``package``, ``two-windows`` (a
running request also holds its prompt's window, as in 0.1), ``admission`` and ``unified`` (``--enable-unified-memory``: one buffer whose
split between full and sliding layers moves). vLLM joins where it is installed: ``sglang-gemma4 bench``
with a stage's words and ``--arm vllm:vllm,mtp``. A bench's folder has retractions, running requests and peaks of the pools:
``sglang-gemma4 bench --report FOLDER/STAGE``.
"""

import sys

from tests.gpu.measure import run_of
from tests.gpu.stages import COMMON, OUT, PACKAGE, PYTHON, STOCK, Stage, bench, off, tests

G = "SGLANG_GEMMA4"
FLAGS = f"{COMMON} --context-length=16384 --max-running-requests=64 --mem-fraction-static=0.85"
LONG = f"{COMMON} --context-length=40000 --max-running-requests=160 --mem-fraction-static=0.85"
OF_80 = "--mem-fraction-static=0.48"
"""Of a card of 141 GB: weights, draft and pools as on one of 80 at 0.85."""
TWO = off("two-windows", "own_window")
ADMISSION = f"--arm admission:package,mtp,{G}_SWA_ADMISSION=1"
UNIFIED = "--arm unified:package,mtp,--enable-unified-memory"
ONE = "--workload 64x1000/500,mix --rounds 1 --repetitions 3"
CELLS = "--workload 160x500/500,128x2000/500,64x8000/500,24x32000/200 --rounds 1 --repetitions 1"


def soak(name: str, minutes: float, decides: str, *words: str) -> Stage:
    """``tests/gpu/soak.py`` on a tiny model."""
    start = (PYTHON, "-m", "tests.gpu.soak", f"{OUT}/{name}", *words)
    return Stage(name, int(60 * minutes) + 240, decides, ((*start, "--minutes", str(minutes)),), dry=((*start, "--minutes", "0.2"),))


STAGES: tuple[Stage, ...] = (
    bench("one-window", 580, "64 requests without a retraction", "26b-a4b", f"{STOCK} {PACKAGE} {ONE}", FLAGS),
    bench("one-window-ways", 480, "what the window and admission each do", "26b-a4b", f"{PACKAGE} {TWO} {ADMISSION} {ONE}", FLAGS),
    bench("one-window-80gb", 480, "the same with an 80 GB card's pools", "26b-a4b", f"{STOCK} {PACKAGE} {TWO} {ONE}", f"{FLAGS} {OF_80}"),
    bench("cells", 580, "running requests at saturation, by prompt length", "26b-a4b", f"{STOCK} {PACKAGE} {CELLS}", LONG),
    bench("cells-80gb", 580, "the same with an 80 GB card's pools", "26b-a4b", f"{STOCK} {PACKAGE} {CELLS}", f"{LONG} {OF_80}"),
    bench(
        "window-steps", 300, "decode steps, which the window's bookkeeping must not slow", "26b-a4b",
        f"{PACKAGE} {TWO} --batches 32,64 --step-tokens 1000,1500 --rounds 1 --repetitions 3", FLAGS,
    ),
    bench("unified-cells", 580, "a boundary that moves: running requests by length", "26b-a4b", f"{PACKAGE} {UNIFIED} {CELLS}", LONG),
    bench(
        "unified-cells-80gb", 580, "the same with an 80 GB card's pools", "26b-a4b", f"{PACKAGE} {UNIFIED} {CELLS}", f"{LONG} {OF_80}",
    ),
    bench(
        "unified-steps", 300, "what its tables cost a decode step", "26b-a4b",
        f"{PACKAGE} {UNIFIED} --batches 1,32,64 --step-tokens 1000,300 --rounds 1 --repetitions 3", FLAGS,
    ),
    *(
        bench(
            f"default-{name}", 240, "starts by default, with MTP and without", name,
            f"{PACKAGE} --arm plain:package --workload 1x512/64 --rounds 1 --repetitions 1", COMMON,
        )
        for name in ("e2b", "e4b", "26b-a4b", "31b")
    ),
    soak("soak", 7.0, "answers that end by themselves, each pool in turn a tenth too small, aborts", "--bold"),
    tests("memory-tests", 240, "traps for illegal reads and page tables on a card", "tests/gpu/test_memory.py", beside=False),
)  # fmt: skip


def main(words: list[str]) -> int:
    """Exit status: that of ``measure.py``."""
    asked = run_of(words, STAGES, str(__doc__))
    return 2 if asked is None else asked[0].all(asked[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
