"""Stages of ``measure.py`` for servers beside vLLM's on one card: the tables of stock, package and vLLM in one run.

    SGLANG_GEMMA4_VLLM_PYTHON=PYTHON python tests/gpu/measure.py FOLDER peer_stages

PYTHON is one that imports vLLM 0.33 (docs/measuring.md). One server at a time, since each takes the card, so repetitions of an arm follow
each other; a stage that was cut short goes on where it ended. ``h100``: loads that an 80 GB card's pools hold, at most 64 requests.
``sglang-gemma4 bench --report FOLDER/STAGE`` writes the report.
"""

from dataclasses import replace

from tests.gpu.quant_stages import DRAFT
from tests.gpu.stages import COMMON, Stage, bench

FLAGS = COMMON.replace(" ", ",")
"""SGLang's alone: vLLM has none of these names."""
BOTH = "--context-length=16384 --mem-fraction-static"
H200, H100 = f"--max-running-requests=80 {BOTH}=0.85", f"--max-running-requests=64 {BOTH}=0.9"
SHARED_CARD = f"--max-running-requests=80 {BOTH}=0.75"
"""Quantised weights leave room for tests beside a server's start."""
DENSE = "prefill,mix,chat,32x1000/200,single"
LOADS = "--rates 6,12 --load-seconds 10 --rounds 1 --repetitions 3"


GAP = "gap6:SGLANG_GEMMA4_BESIDE_GAP=6"
"""The package at about the gaps of vLLM's chunks."""
BESIDE = "beside:SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY=1"
"""Where it is off by default."""


def arms(how: str = "mtp,", stock: str = "", other: str = "", on: str = "") -> str:
    """Package, vLLM and, on the workloads ``stock``, stock; ``how``: with the assistant or ``""``; ``other``: NAME:VARIABLE=VALUE of a
    second package, on the workloads ``on`` or all.
    """
    found = f"--arm package:package,{how}{FLAGS} --arm vllm:vllm{f',{how}'.rstrip(',')}"
    name, _, variable = other.partition(":")
    found += f" --arm {name}:package,{how}{FLAGS},{variable}{f',only={on}' if on else ''}" if other else ""
    return f"{found} --arm stock:stock,{how}{FLAGS},only={stock}" if stock else found


def bursts(form: str = "") -> str:
    """Package and vLLM over batches of 1, 8, 32 and 80, the mix and long prompts; the assistant is in bfloat16 whatever the weights are."""
    return (
        f"{form and f'--quantization {form} '}--arm package:package,mtp,{DRAFT},{FLAGS} --arm vllm:vllm,mtp "
        "--workload single,8x1000/200,32x1000/200,80x1000/200,mix,prefill --rounds 1 --repetitions 3"
    )


def beside(name: str, seconds: int, decides: str, model: str, words: str, flags: str) -> Stage:
    """A bench whose dry run is the package's arm alone, without a card's flags: a machine without a card has no vLLM, and stock's MTP ends
    on a CPU.
    """
    package = words[: words.index(" --arm vllm")].replace(f",{FLAGS}", "")
    loads = words[words.index(" --workload") :]
    (dry,) = bench(name, seconds, decides, model, package + loads, flags).dry
    return replace(bench(name, seconds, decides, model, words, flags), dry=(dry,))


STAGES: tuple[Stage, ...] = (
    beside("peer-26b", 1700, "README: 26B-A4B with MTP beside vLLM", "26b-a4b",
           f"{arms(stock='mix+32x1000/200', other=GAP)} --workload mix,32x1000/200,chat,summarize,log-uniform {LOADS}", H200),
    beside("peer-26b-h100", 1700, "the same on 80 GB", "26b-a4b",
           f"{arms(stock='mix+64x1000/500', other=GAP)} --workload mix,32x1000/200,64x1000/500,chat,log-uniform {LOADS}", H100),
    beside("peer-26b-plain", 700, "26B-A4B without MTP", "26b-a4b",
           f"{arms('')} --workload 32x1000/200,chat --rounds 1 --repetitions 3", H200),
    beside("peer-26b-bursts", 700, "26B-A4B with MTP on the loads of the quantised ones", "26b-a4b", bursts(), SHARED_CARD),
    beside("peer-26b-fp8", 700, "26B-A4B in fp8 with MTP", "26b-a4b", bursts("fp8-dynamic"), SHARED_CARD),
    beside("peer-26b-int4", 700, "26B-A4B in 4 bits with MTP", "26b-a4b", bursts("w4a16-g32"), SHARED_CARD),
    beside("peer-e2b", 950, "E2B with MTP, with and without prefill beside verify", "e2b",
           f"{arms(stock='prefill+mix', other=BESIDE, on='mix+chat+32x1000/200')} --workload {DENSE} --rounds 1 --repetitions 3", H200),
    beside("peer-e4b", 950, "E4B with MTP, with and without prefill beside verify", "e4b",
           f"{arms(stock='prefill+mix', other=BESIDE, on='mix+chat+32x1000/200')} --workload {DENSE} --rounds 1 --repetitions 3", H200),
)  # fmt: skip
