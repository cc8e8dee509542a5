"""Stages of ``measure.py`` for what the host does in a step: at batch 1 it may take longer than the card.

    python tests/gpu/measure.py FOLDER host_stages

Arms: ``package``; ``launches``, which accepts by SGLang's launches (without ``chain_acceptance``); ``fill``, an
option of SGLang's own; ``draft8``, an assistant that is quantised to fp8 as it is loaded; the engines at a time, in turns. ``lone-NAME``
have one engine after the other, twice, in longer answers: engines side by side wait for each other's processes, by up to a third of a step
at batch 1.
``host-e2b-plain`` compares ``step_metadata`` with SGLang's launches.
``NAME-profile`` says call by call what the host did (``sglang-gemma4 bench --report FOLDER/STAGE``, "the host in a decode step"); the
profiler itself slows the host, so steps are timed without it. ``host-long`` has contexts in which SGLang's gather of slots, one program a
request, takes longest, and ``host-default`` the context and the requests that a server has by default, whose masks are largest.
"""

from tests.gpu.quant_stages import DRAFT, INT4
from tests.gpu.stages import COMMON, PACKAGE, Stage, bench, tests

LAUNCHES = "--arm launches:package,mtp,SGLANG_GEMMA4_WITHOUT=chain_acceptance"
FILL = "--arm fill:package,mtp,SGLANG_OPT_CUDA_GRAPH_FILL_FAST_PATH=1"
ARMS = f"--together 2 {PACKAGE}"
PLAIN = "--together 2 --arm package --arm stock-metadata:package,SGLANG_GEMMA4_WITHOUT=step_metadata"
PAIR = f"{COMMON} --disable-prefill-cuda-graph --swa-full-tokens-ratio=1.0 --mem-fraction-static=0.97 --sleep-on-idle"
SHORT = f"{PAIR} --context-length=16384 --max-running-requests=80 --max-total-tokens=66000 --cuda-graph-bs-decode 1 8 32 80"
LONG = f"{PAIR} --context-length=131072 --max-running-requests=8 --max-total-tokens=140000 --cuda-graph-bs-decode 1 4"
DEFAULT = f"{PAIR} --max-total-tokens=66000"
STEPS = "--batches 1,8,32,80 --step-tokens 300,200 --repetitions 5"
FP8 = "--quantization fp8-dynamic"
FP8_ARMS, FP8_PACKAGE = (arms.replace(",mtp", f",mtp,{DRAFT}") for arms in (ARMS, PACKAGE))
DRAFT8 = "--arm draft8:package,mtp,--speculative-draft-model-quantization=fp8"
LONE = "--batches 1,4 --step-tokens 300,1000 --rounds 2 --repetitions 3"
PROFILE = "--batches 1 --step-tokens 300,200 --repetitions 1 --profile 1"

STAGES: tuple[Stage, ...] = (
    tests("host-tests", 120, "the launches that derive metadata and accept drafts, on a GPU and in a graph",
          "tests/gpu/test_step_metadata_gpu.py tests/gpu/test_chain_acceptance_gpu.py", beside=False),
    bench("host-e2b", 420, "steps with MTP of E2B and with acceptance by SGLang's launches", "e2b",
          f"{ARMS} {LAUNCHES} {STEPS}", SHORT),
    bench("lone-e2b", 300, "a lone answer's steps of E2B, one engine after the other", "e2b",
          f"{PACKAGE} {LAUNCHES} {FILL} {LONE}", SHORT.replace("1 8 32 80", "1 4 8")),
    bench("host-e2b-profile", 240, "what the host does in one", "e2b", f"{ARMS} {PROFILE}", SHORT),
    bench("host-e2b-plain", 240, "steps without MTP, with metadata in the graph and before it", "e2b", f"{PLAIN} {STEPS}", SHORT),
    bench("host-26b-draft8", 420, "steps with MTP of 26B-A4B in fp8, and with its assistant in fp8 too", "26b-a4b",
          f"{FP8} --together 2 {FP8_PACKAGE} {DRAFT8} {STEPS}", SHORT),
    *(
        bench(f"lone-{name}", 480, f"a lone answer's steps of 26B-A4B in {what}, what waits one engine after the other", "26b-a4b",
              f"{form} {arms} {LONE}", SHORT.replace("1 8 32 80", "1 4 8"))
        for name, what, form, arms in (
            ("int4", "4 bits", INT4, f"{FP8_PACKAGE} {LAUNCHES.replace(',mtp', f',mtp,{DRAFT}')} {DRAFT8}"),
            ("fp8", "fp8", FP8, f"{FP8_PACKAGE} {DRAFT8}"),
        )
    ),
    bench("host-26b-profile", 300, "what the host does in one", "26b-a4b", f"{FP8} {FP8_ARMS} {PROFILE}", SHORT),
    bench("host-long", 300, "steps with MTP of E2B behind 30,000 tokens", "e2b",
          f"{ARMS} --batches 1,4 --step-tokens 30000,200 --prefill-once --repetitions 5", LONG),
    bench("host-default", 300, "steps with MTP of E2B in the context that its checkpoint has", "e2b",
          f"{ARMS} --batches 1,32 --step-tokens 300,200 --repetitions 5", DEFAULT),
)  # fmt: skip
