"""Stages of ``measure.py`` for prefill and decode servers, and for tensor parallelism: a machine with two cards.

    python tests/gpu/measure.py FOLDER pd_stages

A pair's JSON and logs lie in FOLDER (``pd_servers.py`` says what is in them): 1p1d on a card each, by CUDA IPC and by copies through the
host; 1p2d, 2p1d and 2p2d with both servers on both cards. The tiny model shows tokens, 26B-A4B's layers with random weights show time:
there near ties part the answers, and none is asked to be alike. Then TP 2 alone: what the second card gains, and the switches that only
matter there.

What the machine needs beyond one card's bundle: nixl and nixl-cu13 1.5.1 and sglang-router 0.3.2, installed with --no-deps (their wheels
are 56 and 29 MiB, nixl's own is 12 KiB, and nixl-cu12 is not needed). NIXL's libraries bring their UCX. TP 2 takes the NCCL of the
machine's own torch: SGLang's communicator opens libnccl.so.2 by name, so that library's folder must be on LD_LIBRARY_PATH, and a
preloaded stub of NCCL's newer calls must leave the calls that library has alone (weak symbols). NCCL_NVLS_ENABLE=0 stays set where the
host is shared.
"""

import shlex

from tests.gpu.stages import COMMON, OUT, PYTHON, Stage, bench, both

INT8 = "--kv-cache-dtype=int8_per_token_head"
ALL = f"{COMMON} --disable-prefill-cuda-graph --max-running-requests=16"
TINY = f"{ALL} --context-length=4096 --max-total-tokens=40000 --mem-fraction-static=0.7"
LARGE = f"{ALL} --load-format=dummy --context-length=16384 --max-total-tokens=60000 --mem-fraction-static=0.85"
TWO = f"{COMMON} --tp-size=2 --context-length=16384 --max-running-requests=64 --mem-fraction-static=0.85"
ONCE = "--rounds 1 --repetitions 3"
WHOLE, APART = "SGLANG_GEMMA4_SHARDED_HEAD=0", "SGLANG_GEMMA4_DENSE_OVERLAP=0"
DRY = (
    "--context-length=2048 --max-running-requests=4 --max-total-tokens=4096 --mem-fraction-static=0.3 "
    "--disaggregation-decode-retraction-backup=cpu_tensor"
)
"""The CPU engine's flags are its own."""


def tiny(prefill: int, decode: int) -> str:
    """Words of a small pair, whose single server fits on card 0 beside it."""
    return f"tiny-26b-a4b --prefill-tp {prefill} --decode-tp {decode} --mtp --together"


def servers(name: str, seconds: int, decides: str, words: str, flags: str, variables: str = "", dry: str = "") -> Stage:
    """A pair against one server; ``dry``: words of the same on the CPU."""

    def command(asked: str, given: str) -> tuple[str, ...]:
        start = (PYTHON, "-m", "tests.gpu.pd_servers", f"{OUT}/{name}.json", *shlex.split(asked), "--", *given.split())
        return ("env", *variables.split(), *start) if variables else start

    if words.startswith("26b-a4b "):  # a config is all that random weights need
        folder = f"{OUT}/{name}-26b-a4b"
        make = (PYTHON, "-m", "sglang_gemma4.cli", "checkpoint", "26b-a4b", folder, "--random")
        asked = both(("rm", "-rf", folder, f"{folder}-assistant"), make, command(words.replace("26b-a4b", folder, 1), flags))
        return Stage(name, seconds, decides, (asked,))
    rehearsal = (command(f"{dry} --longest 300 --cards 0", f"{DRY} {INT8}" if INT8 in flags else DRY),) if dry else ()
    return Stage(name, seconds, decides, (command(words, flags),), dry=rehearsal)


STAGES: tuple[Stage, ...] = (
    servers("pd-1p1d", 300, "tokens of a pair over NIXL, a GPU each, MTP", tiny(1, 1), TINY,
            dry=tiny(1, 1)),
    servers("pd-1p2d", 300, "unequal sizes", tiny(1, 2), TINY,
            dry=tiny(1, 2)),
    servers("pd-2p1d", 300, "unequal sizes", tiny(2, 1), TINY),
    servers("pd-2p2d", 300, "both servers on both cards", tiny(2, 2), TINY),
    servers("pd-1p2d-int8", 300, "scales of a quantised cache", tiny(1, 2), f"{TINY} {INT8}"),
    servers("pd-large", 600, "26B-A4B: transfer and first-token time, a GPU each", "26b-a4b --prefill-tp 1 --decode-tp 1 --same 0", LARGE),
    servers("pd-large-host", 600, "the same without CUDA IPC between the servers", "26b-a4b --prefill-tp 1 --decode-tp 1 --same 0", LARGE,
            "UCX_TLS=^cuda_ipc"),
    servers("pd-large-stock", 600, "the same on stock", "26b-a4b --prefill-tp 1 --decode-tp 1 --same 0", LARGE, "SGLANG_GEMMA4=0"),
    bench("tp2-steps", 580, "TP 2 alone beside one card: graphs of the short part, SHARDED_HEAD, DENSE_OVERLAP", "26b-a4b",
          f"--arm package:package,mtp --arm single:package,mtp,--tp-size=1 --arm whole-head:package,mtp,{WHOLE} "
          f"--arm apart:package,mtp,{APART} --arm stock:stock,mtp --batches 1,32 --step-tokens 300,500 {ONCE}", TWO),
    bench("tp2-serve", 580, "TP 2: a server's tokens", "26b-a4b",
          f"--arm stock:stock,mtp --arm package:package,mtp --workload chat,summarize {ONCE}", TWO),
)  # fmt: skip
