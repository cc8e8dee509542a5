"""Stages of ``measure.py`` for the quantised KV cache: 26B-A4B on one card of 141 GB, spread weights.

    python -m tests.gpu.kv_format_stages FOLDER [STAGE ...] [--dry-run]

Arms: ``bf16``, ``int8`` and ``fp8`` (a scale for each token and head), and ``fp8-one``: SGLang's fp8_e4m3, through SGLang's own kernels,
and on E2B, where these do not start, through this package's. The log of each start has its pools' tokens (``swa size``, ``full size``).
fp8_e4m3 does not start without a card, so what has such an arm has no dry run. Answers of a real checkpoint: ``sglang-gemma4 eval``
against two servers, then ``sglang-gemma4 compare``.
"""

import sys
from dataclasses import replace

from tests.gpu.measure import run_of
from tests.gpu.stages import COMMON, Stage, bench, tests

INT8, FP8 = "--kv-cache-dtype=int8_per_token_head", "--kv-cache-dtype=fp8_per_token_head"
ONE = "--kv-cache-dtype=fp8_e4m3"
MTP = f"--arm bf16:package,mtp --arm int8:package,mtp,{INT8}"
PLAIN = f"--arm bf16:package --arm int8:package,{INT8}"
SCALES = f"{MTP} --arm fp8:package,mtp,{FP8}"
ALL = f"{SCALES} --arm fp8-one:package,mtp,{ONE}"
FILE = "tests/gpu/test_kv_formats_gpu.py"
LONG = f"{COMMON} --context-length=100000 --max-running-requests=32 --mem-fraction-static=0.85"
SHORT = f"{COMMON} --context-length=16384 --max-running-requests=64 --mem-fraction-static=0.85"
ONCE = "--rounds 1 --repetitions 3"


def on_card(stage: Stage) -> Stage:
    """Without a dry run."""
    return replace(stage, dry=())


STAGES: tuple[Stage, ...] = (
    tests("kv-kernels", 300, "kernels and references; times to 64k keys", FILE, beside=False),
    bench("kv-steps-long", 580, "decode at 32k and 64k keys", "26b-a4b",
          f"{PLAIN} --batches 16 --step-tokens 32768,65536 {ONCE}", LONG),
    bench("kv-verify-long", 580, "verify steps at the same lengths", "26b-a4b",
          f"{MTP} --batches 16 --step-tokens 32768,65536 {ONCE}", LONG),
    bench("kv-steps-short", 480, "short contexts within 3 %, formats beside each other", "26b-a4b",
          f"{SCALES} --batches 1,8,32 --step-tokens 300,1000 {ONCE}", SHORT),
    bench("kv-serve", 580, "a server's tokens and requests, pools >= 1.9 times", "26b-a4b",
          f"{SCALES} --workload chat,summarize {ONCE}", SHORT),
    bench("kv-full", 480, "a pool that is always full: retractions, slots used again", "26b-a4b",
          f"{MTP} --workload 64x4000/500 {ONCE}", f"{SHORT} --max-total-tokens=120000"),
    on_card(bench("kv-fp8", 580, "beside SGLang's fp8", "26b-a4b", f"{ALL} --batches 16 --step-tokens 1000,32768 {ONCE}", LONG)),
    on_card(bench("kv-e2b", 480, "E2B, whose fp8 SGLang's kernels do not start", "e2b",
                  f"{ALL} --workload chat {ONCE}", SHORT)),
)  # fmt: skip


def main(words: list[str]) -> int:
    """Exit status: that of ``measure.py``."""
    asked = run_of(words, STAGES, str(__doc__))
    return 2 if asked is None else asked[0].all(asked[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
