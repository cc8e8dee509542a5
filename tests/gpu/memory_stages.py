"""Stages of ``measure.py`` for the KV pools: one card of 80 GB, and the pools of smaller cards.

    python tests/gpu/measure.py FOLDER memory_stages

On a card of 141 GB ``one-window-80gb`` and ``cells-80gb`` have the pools of one of 80; ``smaller-cards``, on one of 80, and
``smaller-cards-141gb`` have those of one of 24 and one of 48 GB. Arms: ``stock``, ``package``, ``two-windows`` (a running request also
holds its prompt's window, as in 0.1) and ``unified`` (``--enable-unified-memory``: one buffer whose split between full and
sliding layers moves). vLLM joins where it is installed: ``sglang-gemma4 bench`` with a stage's words and ``--arm vllm:vllm,mtp``. A
bench's folder has retractions, running requests and peaks of the pools: ``sglang-gemma4 bench --report FOLDER/STAGE``. ``pressure`` asks
for all at once that takes memory. ``soak`` has a server for each pool, side by side; what is timed must not run beside it.
"""

from sglang_gemma4.patching import switches
from tests.gpu.stages import COMMON, OUT, PACKAGE, PYTHON, STOCK, Command, Stage, bench, off, tests

FLAGS = f"{COMMON} --context-length=16384 --max-running-requests=64 --mem-fraction-static=0.85"
LONG = (
    f"{COMMON} --disable-prefill-cuda-graph --cuda-graph-bs-decode 1 8 32 64 96 128 160 --context-length=40000 "
    "--max-running-requests=160 --mem-fraction-static=0.85"
)
"""With few graphs, so that three starts and their loads fit ten minutes."""
OF_80 = "--mem-fraction-static=0.48"
"""Of a card of 141 GB: weights, draft and pools as on one of 80 at 0.85."""
TWO = off("two-windows", "own_window")
UNIFIED = "--arm unified:package,mtp,--enable-unified-memory"
ONE = "--workload 64x1000/500,mix --rounds 1 --repetitions 3"
CELLS = "--workload 120x500/300,96x2000/300,36x8000/500,10x32000/600 --rounds 1 --repetitions 1"
"""More requests of each length than a card of 80 GB runs at once; long prompts have long answers, so that the first run with the last."""
ONCE = "--workload 1x512/64 --rounds 1 --repetitions 1"


WAYS = f"{STOCK} {PACKAGE} {UNIFIED} {CELLS}"


def smaller(name: str, of_24: float, of_48: float) -> Stage:
    """What a card of 24 or of 48 GB gives weights and pools at 0.87, as parts of this card."""
    arms = " ".join(f"--arm of-{size}:package,mtp,--mem-fraction-static={share}" for size, share in (("24", of_24), ("48", of_48)))
    return bench(name, 240, "E4B in the memory of a GPU of 24 and of 48 GB", "e4b", f"{arms} {ONCE}", COMMON)


def soak(name: str, minutes: float, decides: str, *words: str) -> Stage:
    """``tests/gpu/soak.py`` on a tiny model, each pool so many minutes, side by side."""

    def both(length: float) -> tuple[Command, ...]:
        start = (PYTHON, "-m", "tests.gpu.soak")
        return tuple(
            (*start, f"{OUT}/{name}-{pool}", "--bind", pool, "--port", str(port), "--minutes", str(length), *words)
            for pool, port in (("full", 31700), ("sliding", 31900))
        )

    return Stage(name, int(60 * minutes) + 240, decides, both(minutes), dry=both(0.2))


def pressure(name: str, seconds: int, decides: str, model: str, *environment: str) -> Stage:
    """``tests/gpu/pressure.py`` for 90 seconds."""

    def command(model: str, length: float) -> Command:
        words = (PYTHON, "-m", "tests.gpu.pressure", f"{OUT}/{name}", "--model", model, "--seconds", str(length))
        return (*words, "--environment", *environment) if environment else words

    return Stage(name, seconds, decides, (command(model, 90),), dry=(command("tiny-26b-a4b", 5),))


STAGES: tuple[Stage, ...] = (
    bench("one-window", 580, "64 requests without a retraction", "26b-a4b", f"{STOCK} {PACKAGE} {ONE}", FLAGS),
    bench("one-window-ways", 480, "what the window does", "26b-a4b", f"{PACKAGE} {TWO} {ONE}", FLAGS),
    bench("one-window-80gb", 480, "the same with an 80 GB card's pools", "26b-a4b", f"{STOCK} {PACKAGE} {TWO} {ONE}", f"{FLAGS} {OF_80}"),
    bench("cells", 900, "running requests at saturation, by prompt length and way of sharing the memory", "26b-a4b", WAYS, LONG),
    bench("cells-80gb", 900, "the same with an 80 GB card's pools", "26b-a4b", WAYS, f"{LONG} {OF_80}"),
    bench(
        "window-steps", 300, "decode steps, which the window's bookkeeping must not slow", "26b-a4b",
        f"{PACKAGE} {TWO} --batches 32,64 --step-tokens 1000,1500 --rounds 1 --repetitions 3", FLAGS,
    ),
    bench(
        "unified-steps", 300, "what its tables cost a decode step", "26b-a4b",
        f"{PACKAGE} {UNIFIED} --batches 1,8,32,64 --step-tokens 1000,300 --rounds 1 --repetitions 3", FLAGS,
    ),
    *(
        bench(
            f"default-{name}", 240, "starts by default, with MTP and without", name,
            f"{PACKAGE} --arm plain:package {ONCE}", COMMON,
        )
        for name in ("e2b", "e4b", "26b-a4b", "31b")
    ),
    smaller("smaller-cards", 0.26, 0.52),
    smaller("smaller-cards-141gb", 0.148, 0.296),
    pressure("pressure", 300, "all that takes memory at once, by SGLang's --mem-fraction-static", "26b-a4b"),
    pressure("pressure-auto", 300, "the same with the calculated reserve", "26b-a4b", f"{switches.RESERVE_GIB}=auto"),
    pressure("pressure-auto-e4b", 240, "the same of a small model with a large pool", "e4b", f"{switches.RESERVE_GIB}=auto"),
    soak("soak", 7.0, "answers that end by themselves, each pool a tenth too small, aborts", "--bold"),
    soak("soak-dense", 4.0, "the same without experts, where no token may be rounded away", "--bold", "--model", "tiny-31b"),
    tests("memory-tests", 240, "traps for illegal reads and page tables on a GPU", "tests/gpu/test_memory.py", beside=False),
)  # fmt: skip
