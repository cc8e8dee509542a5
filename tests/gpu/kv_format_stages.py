"""Stages of ``measure.py`` for the quantised KV cache: 26B-A4B on one card of 141 GB, spread weights.

    python tests/gpu/measure.py FOLDER kv_format_stages

Arms: ``bf16``, ``int8`` and ``fp8`` (a scale for each token and head); ``stock-fp8``: stock SGLang with its own fp8_e4m3, on E2B, where it
does not start, this package with it. The engines of a stage are up side
by side over one copy of the weights, their passes in turn; long prompts are prefilled once. The log of each start has its pools' tokens
(``swa size``, ``full size``). fp8_e4m3 does not start without a card, so what has such an arm has no dry run. Answers of a real checkpoint:
``sglang-gemma4 eval`` against two servers, then ``sglang-gemma4 compare``.
"""

from dataclasses import replace

from tests.gpu.stages import COMMON, Stage, bench, kernels, tests

INT8, FP8 = "--kv-cache-dtype=int8_per_token_head", "--kv-cache-dtype=fp8_per_token_head"
ONE = "--kv-cache-dtype=fp8_e4m3"
MTP = f"--arm bf16:package,mtp --arm int8:package,mtp,{INT8}"
PLAIN = f"--arm bf16:package --arm int8:package,{INT8}"
SCALES = f"{MTP} --arm fp8:package,mtp,{FP8}"
ASKED = "SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY=1,SGLANG_GEMMA4_FLASH_PREFILL=1"
"""Over a quantised cache both are off until somebody has measured them."""
STOCK = f"--arm stock-fp8:stock,mtp,{ONE}"
FILE = "tests/gpu/test_kv_formats_gpu.py"
TOGETHER = "--together --share-weights --repetitions 3"
SIXTEEN = f"{TOGETHER} --prefill-once --batches 16"
SHORT = f"{COMMON} --context-length=16384 --max-running-requests=64 --mem-fraction-static=0.85"
SIDE = f"{COMMON} --disable-prefill-cuda-graph --mem-fraction-static=0.97 --sleep-on-idle"


def pools(requests: int, tokens: int, sliding: int) -> str:
    """Flags of one engine among others: requests of ``tokens`` tokens, and a sliding pool of ``sliding``, a prompt's chunk included."""
    total = requests * tokens
    return (
        f"{SIDE} --context-length={tokens + 256} --max-running-requests={requests} --max-total-tokens={total} "
        f"--swa-full-tokens-ratio={min(1.0, sliding / total):.3f}"
    )


WINDOWS = 43_000
"""Of 16 requests: two windows each, one of which the prefix cache keeps, and a chunk of 8,192."""


def on_card(stage: Stage) -> Stage:
    """Without a dry run."""
    return replace(stage, dry=())


def long(name: str, seconds: int, arms: str, prompt: int) -> Stage:
    """Steps of 16 requests behind ``prompt`` tokens."""
    kind = "verify" if "mtp" in arms else "decode"
    flags = f"{pools(16, prompt + 2048, WINDOWS)} --cuda-graph-bs-decode 16"
    made = bench(name, seconds, f"{kind} steps of 16 x {prompt:,} keys", "26b-a4b", f"{arms} {SIXTEEN} --step-tokens {prompt},80", flags)
    return on_card(made) if ONE in arms else made


STAGES: tuple[Stage, ...] = (
    tests("kv-kernels", 300, "kernels and references; times to 64k keys", FILE, beside=False),
    kernels("kv-tiles", 240, "tiles over a quantised cache", "attention-levels --cache int8_per_token_head --keys 1024 32768 --tune 15"),
    long("kv-verify-32k", 330, f"{MTP} {STOCK}", 32768),
    long("kv-verify-64k", 420, SCALES, 65536),
    long("kv-decode-32k", 300, PLAIN, 32768),
    long("kv-decode-64k", 330, PLAIN, 65536),
    on_card(bench("kv-steps-short", 300, "short contexts within 3 %, formats beside each other", "26b-a4b",
                  f"{SCALES} {STOCK} {TOGETHER} --batches 1,8,32 --step-tokens 1000,80",
                  f"{pools(32, 1_500, 48_000)} --cuda-graph-bs-decode 1 8 32")),
    bench("kv-serve", 580, "a server's tokens and requests, pools >= 1.9 times", "26b-a4b",
          f"{SCALES} --workload chat,summarize --rounds 1 --repetitions 3", SHORT),
    bench("kv-beside", 580, "serving over int8 with prompts beside running requests, and without", "26b-a4b",
          f"{MTP} --arm int8-beside:package,mtp,{INT8},{ASKED} --workload mix,32x1000/200,chat "
          "--rounds 1 --repetitions 3", SHORT),
    bench("kv-full", 480, "a pool that is always full: retractions, slots used again", "26b-a4b",
          f"{MTP} --workload 64x4000/500 --rounds 1 --repetitions 3", f"{SHORT} --max-total-tokens=120000"),
    on_card(bench("kv-e2b", 480, "E2B, whose fp8 SGLang's kernels do not start", "e2b",
                  f"{SCALES} --arm fp8-one:package,mtp,{ONE} --workload chat --rounds 1 --repetitions 3", SHORT)),
)  # fmt: skip
