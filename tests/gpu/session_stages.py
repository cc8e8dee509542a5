"""Stages of ``measure.py`` for many sessions: turns that find what was said before, and what it costs where they do not.

    python tests/gpu/measure.py FOLDER session_stages

On a card of 141 GB all have the pools of one of 80, but ``pool-hits-80gb``, which is for such a card. The two stages of ``pool-hits`` start
three arms in at most eight minutes, each other one in four; at the end the sessions of all stages are printed as a report has them.
Under MTP the accept length is simulated, so only the plain arms (``pool-hits``, ``sessions-hicache-plain``) compare cold answers with warm
ones. A stage of HiCache has no dry run: its copies need a card. ``sglang-gemma4 bench --report FOLDER/STAGE`` writes the whole report with
plots.
"""

from dataclasses import replace

from tests.gpu.memory_stages import FLAGS, OF_80
from tests.gpu.stages import PACKAGE, STOCK, Stage, bench

ONCE = "--think 1 --rounds 1 --repetitions 1"
COUNTS = f"--workload sessions-10x10000/4,sessions-50x10000/4,sessions-200x5000/4 {ONCE}"
"""200 sessions of 5,000 tokens hold 41 GB of sliding windows and 20 GB of full KV: three times the pools."""
MANY = f"--workload sessions-200x5000/4,sessions-50x10000/4@4 {ONCE}"
HOST = "--enable-hierarchical-cache,--hicache-write-policy=write_through,--hicache-ratio=3"
"""Pinned host memory for three times both pools, some 55 GB."""
FEW = f"{FLAGS} --cuda-graph-bs-decode 1 8 32 64"
TIGHT = f"{FEW} --mem-fraction-static=0.43"
"""Pools of some 11 GiB: they would hold 35 sessions of 5,000 tokens if they were split for these, so those of 50 drive each other out."""
TIGHT_80 = f"{FEW} --mem-fraction-static=0.76"
"""The same on a card of 80 GB."""


def on_card(stage: Stage) -> Stage:
    """Without a dry run."""
    return replace(stage, dry=())


STAGES: tuple[Stage, ...] = (
    bench("sessions", 240, "10, 50 and 200 sessions with the package", "26b-a4b", f"{PACKAGE} {COUNTS}", f"{FLAGS} {OF_80}"),
    bench("sessions-stock", 240, "the same on stock", "26b-a4b", f"{STOCK} {COUNTS}", f"{FLAGS} {OF_80}"),
    on_card(
        bench(
            "sessions-hicache", 240, "200 sessions whose idle KV goes to the host, and turns at a rate", "26b-a4b",
            f"--arm hicache:package,mtp,{HOST} {MANY}", f"{FLAGS} {OF_80}",
        )
    ),
    bench("sessions-rate", 240, "the same without a host cache", "26b-a4b", f"{PACKAGE} {MANY}", f"{FLAGS} {OF_80}"),
    on_card(
        bench(
            "sessions-hicache-plain", 240, "cold and warm answers with a host cache, plain decoding", "26b-a4b",
            f"--arm hicache:package,{HOST} --workload sessions-100x5000/4 {ONCE}", f"{FLAGS} {OF_80}",
        )
    ),
    *(
        on_card(
            bench(
                name, 480, "hits in both pools where windows do not fit, and with KV on the host; cold and warm answers, plain decoding",
                "26b-a4b", f"--arm stock --arm package --arm hicache:package,{HOST} --workload sessions-50x5000/4 {ONCE}", flags,
            )
        )
        for name, flags in (("pool-hits", TIGHT), ("pool-hits-80gb", TIGHT_80))
    ),
)  # fmt: skip
