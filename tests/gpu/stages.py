"""What a stage is, and those of the package as a whole, in the order of their worth. ``stage_table.py`` has all."""

import shlex
from dataclasses import dataclass

PYTHON = "{python}"
OUT = "{out}"
LOCK = "{lock}"
Command = tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """One row. In commands ``{python}``, ``{out}`` and ``{lock}`` stand for the interpreter, the results' folder, the card's lock."""

    name: str
    seconds: int
    """What it needs on an H200, and what it gets."""
    decides: str
    commands: tuple[Command, ...]
    """Started side by side; the stage is done when all end with status 0."""
    beside: bool = False
    """Runs beside the stages that follow: tests share the card, but not with a pass that is timed."""
    waits: bool = False
    """Begins when all before it have ended: it takes the card's memory."""
    locked: bool = True
    """The runner holds the card's lock while it runs; a bench takes it itself, for each pass."""
    dry: tuple[Command, ...] = ()
    """What a dry run starts; nothing: the stage has none."""
    says: str = ""
    """A pattern that a log of the bench's arm ``package`` must hold for the comparison to mean what it says."""


def bench(
    name: str, seconds: int, decides: str, model: str, words: str, flags: str, beside: bool = False, waits: bool = False, says: str = ""
) -> Stage:
    """A run of ``sglang-gemma4 bench`` in a folder of the stage's name."""
    start = (PYTHON, "-m", "sglang_gemma4.cli", "bench", model, "--out", f"{OUT}/{name}", "--no-report", "--card-lock", LOCK)
    asked = tuple(shlex.split(words))
    dry = (*start, "--dry-run", *asked, "--", "--max-running-requests=80")  # the flags are a card's
    return Stage(name, seconds, decides, ((*start, *asked, "--", *flags.split()),), beside, waits, locked=False, dry=(dry,), says=says)


def tests(name: str, seconds: int, decides: str, *groups: str, beside: bool = True) -> Stage:  # noqa: PT028 - no test
    """Tests of this folder, each group a process; the log has what passing tests print."""
    start = (PYTHON, "-m", "pytest", "-v", "-rs", "-rP", "-p", "no:cacheprovider")
    return Stage(name, seconds, decides, tuple((*start, *shlex.split(group)) for group in groups), beside)


def engines(*names: str) -> tuple[str, ...]:
    """Arguments of pytest for files that start engines."""
    return tuple(f"tests/gpu/test_{name}.py" for name in names)


def kernels(name: str, seconds: int, decides: str, words: str) -> Stage:
    """A sweep of single kernels."""
    start = (PYTHON, "-m", "sglang_gemma4.benchmark.kernels", *words.split())
    return Stage(name, seconds, decides, ((*start, "--raw", f"{OUT}/{name}.jsonl"),), dry=((*start, "--dry-run"),))


def both(*commands: Command) -> Command:
    """One after the other, the second only where the first succeeds."""
    return "bash", "-c", " && ".join(shlex.join(command) for command in commands)


# All arms alike. SGLang's own sampling is off: it needs kernels that a card without a network lacks.
COMMON = "--attention-backend=triton --sampling-backend=pytorch --mm-attention-backend=triton_attn"
SIZES = "--context-length=16384 --max-running-requests=80 --cuda-graph-bs-decode 1 8 32 64 80"
GRAPHS = f"{COMMON} {SIZES}"
EAGER = f"{COMMON} --disable-prefill-cuda-graph {SIZES}"
SMALL = f"{GRAPHS} --max-total-tokens=140000 --mem-fraction-static=0.9 --sleep-on-idle"
SEVEN = (
    f"{GRAPHS} --max-running-requests=64 --max-total-tokens=30500 --swa-full-tokens-ratio=1.0 --mem-fraction-static=0.97 --sleep-on-idle"
)
"""Up to seven engines of 26B-A4B over one copy of its weights: 49 GiB, and about 10 each."""
TWO = f"{EAGER} --max-total-tokens=64000 --swa-full-tokens-ratio=1.0 --mem-fraction-static=0.93"
"""Two engines with pools for 64 requests of 900 tokens."""
POOLS = f"{EAGER} --max-total-tokens=620000 --swa-full-tokens-ratio=0.17 --mem-fraction-static=0.95 --sleep-on-idle"
"""Two servers with pools for 68 of the requests of summarize."""
PREFILLS = f"{SEVEN} --max-total-tokens=70000 --swa-full-tokens-ratio=0.3"
START = f"--load-format=dummy {COMMON} --context-length=16384 --max-running-requests=80"

STOCK, PACKAGE = "--arm stock:stock,mtp", "--arm package:package,mtp"
STOCK_RATIO = "--arm stock:stock,mtp,--swa-full-tokens-ratio=0.15"  # what the package chooses by itself
SHARED = "--together --share-weights"
G = "SGLANG_GEMMA4"


def off(name: str, patch: str, rest: str = "package,mtp") -> str:
    """An arm without one patch."""
    return f"--arm {name}-off:{rest},{G}_WITHOUT={patch}"


def start_times(name: str, seconds: int, decides: str, arms: str, modes: str) -> Stage:
    """Seconds until servers of 26B-A4B with MTP are ready, in turns; the caches are folders of this stage."""
    folder, model = f"{OUT}/{name}", f"{OUT}/26b-a4b-{name}"
    checkpoint = (PYTHON, "-m", "sglang_gemma4.cli", "checkpoint", "26b-a4b", model, "--random")
    measure = (PYTHON, "-m", "sglang_gemma4.start.measure", folder, "--model", model, *arms.split(), *modes.split(), "--repetitions", "1")
    clear = ("rm", "-rf", folder, model, f"{model}-assistant")
    made = both(clear, checkpoint, (*measure, "--", *START.split()))
    return Stage(name, seconds, decides, (made,), dry=(both(clear, checkpoint, (*measure, "--dry-run", "--", *START.split())),))


def lora_steps(name: str, seconds: int, model: str, words: str, dry_model: str) -> Stage:
    """Steps of a batch with LoRA adapters."""
    start = (PYTHON, "-m", "sglang_gemma4.benchmark.lora_times", f"{OUT}/{name}")
    tiny = (
        dry_model,
        "--cpu",
        "--batch",
        "4",
        "--adapters",
        "0",
        "2",
        "--tokens",
        "16",
        "8",
        "--repetitions",
        "1",
        "--arms",
        "base",
        "lora",
    )
    return Stage(name, seconds, "what LoRA adapters cost a decode step", ((*start, model, *words.split()),), dry=((*start, *tiny),))


FEW = "not prefill and not chunk and not shorter and not 193 and not 320"
ADAPTIVE = "--speculative-adaptive"
REFUSED = f"--arm refused:package,mtp,{ADAPTIVE},SGLANG_SIMULATE_ACC_LEN=1"
NO_FLASH, NO_GRAPH = f"{G}_FLASH_PREFILL=0", f"{G}_PREFILL_GRAPH=0"
FLASH = "FlashAttention-4 .*, prefills (?!no kind)"
SPLIT = "--prefill-attention-backend=fa4,--decode-attention-backend=triton,--speculative-attention-mode=decode"

STAGES = (
    tests(
        "engine-tests", 400, "prefill kernels; engines, memory, fast prefill", '-n 6 tests/gpu -k "flash_prefill or many or chunk"',
        *engines("fast_prefill_gpu", "gpu", "memory"),
    ),
    tests(
        "more-engine-tests", 400, "graphs, images, sampling, fast paths, FlashAttention-4",
        *engines("prefill_graph", "images", "sampling", "fast_paths", "fa4"),
    ),
    tests("lora-tests", 300, "LoRA answers on a GPU, experts' adapters too", *engines("lora_gpu")),
    Stage(
        "quality", 400, "answers of the tiny models: stock, package, MTP",
        (("bash", "tests/gpu/quality.sh", f"{OUT}/quality"),), beside=True,
    ),
    # Small models: the servers of all arms side by side, their start beside tests.
    bench(
        "e4b", 560, "README: E4B, prompts of 7,000 tokens", "e4b",
        "--together --arm stock --arm package --workload prefill --repetitions 3", SMALL, beside=True,
    ),
    bench(
        "e2b", 560, "README: E2B, six pictures, first tokens, prompts of 1,000 to 64,000 and of 7,000 tokens, a lone answer", "e2b",
        "--together --arm stock --arm package --workload images,ttft,prompts,prefill,single --repetitions 2",
        f"{SMALL} --context-length=70000",
    ),
    bench(
        "e2b-switches", 560, "E2B: what images by CUDA IPC, prefill graphs, YOCO's graph and MTP do", "e2b",
        f"--together --arm stock --arm package --arm stock-card:stock,--mm-feature-transport=cuda_ipc,only=images "
        f"--arm eager:package,{NO_GRAPH},only=ttft --arm long:package,{G}_WITHOUT=yoco_graph,only=ttft "
        "--arm stock-mtp:stock,mtp,only=prefill --arm package-mtp:package,mtp,only=prefill "
        "--workload images,ttft,prefill,images-sweep --repetitions 2", SMALL,
    ),
    # 26B-A4B from here on.
    bench(
        "seven", 480, "MTP, plain decoding, prefill graphs, an adaptive length where every draft is refused (3 % may be lost)", "26b-a4b",
        f"{SHARED} {STOCK} {PACKAGE} --arm plain-stock:stock --arm plain:package --arm eager:package,{NO_GRAPH} {REFUSED} "
        f"--arm adaptive:package,mtp,{ADAPTIVE} --batches 1,64,32,8 --step-tokens 300,150 --repetitions 3", SEVEN, waits=True,
    ),
    bench(
        "adaptive", 320, "an adaptive length against plain decoding where every draft is refused", "26b-a4b",
        f"--together 2 --arm plain:package {REFUSED} --batches 1,8,32,64 --step-tokens 500,300 --repetitions 3", TWO,
    ),
    bench(
        "adaptive-accepted", 320, "what an adaptive length makes of accepted drafts", "26b-a4b",
        f"--together 2 --arm fixed:package,mtp --arm adaptive:package,mtp,{ADAPTIVE} --batches 1,8,32,64 --step-tokens 500,300 "
        "--repetitions 3", TWO,
    ),
    bench(
        "mtp-steps", 400, "what a step with MTP is made of", "26b-a4b",
        f"--together 2 {STOCK} {PACKAGE} --batches 1,8,32,64 --step-tokens 700,200 --repetitions 5 --profile 1,8,32,64", TWO,
    ),
    bench(
        "plain", 260, "what a plain step is made of", "26b-a4b",
        "--together 2 --arm stock --arm package --batches 1,32 --step-tokens 700,200 --repetitions 5 --profile 1,32", TWO,
    ),
    bench(
        "steps", 330, "README: steps with and without MTP behind 700 tokens", "26b-a4b",
        f"{SHARED} {STOCK} {PACKAGE} --arm plain-stock:stock --arm plain:package "
        "--batches 1,32,8,80 --step-tokens 700,80 --repetitions 3", f"{SEVEN} --max-running-requests=80 --max-total-tokens=64000",
    ),
    bench(
        "pieces", 360, "what each kernel adds to a step with MTP", "26b-a4b",
        f"{SHARED} {STOCK} {PACKAGE} {off('attention', 'verify_attention')} {off('experts', 'grouped_experts')} "
        f"{off('norms', 'triple_norm')} {off('tail', 'layer_tail')} {off('rope', 'qkv_rope')} "
        "--batches 1,64,32,8 --step-tokens 300,150 --repetitions 3", SEVEN,
    ),
    bench(
        "later-pieces", 300, "what each later kernel adds to a step with MTP", "26b-a4b",
        f"{SHARED} {PACKAGE} {off('argmax', 'draft_argmax')} {off('dependent', 'dependent_launch')} {off('rows', 'few_row_linear')} "
        f"{off('overlap', 'dense_beside_experts')} {off('choice', 'router_choice')} "
        "--batches 1,64,32,8,4 --step-tokens 300,150 --repetitions 3", f"{SEVEN} --cuda-graph-bs-decode 1 4 8 32 64",
    ),
    bench(
        "plain-pieces", 260, "what each later kernel adds to a plain step", "26b-a4b",
        f"{SHARED} --arm stock --arm package {off('choice', 'router_choice', 'package')} {off('rows', 'few_row_linear', 'package')} "
        f"{off('tokens', 'few_token_experts', 'package')} {off('overlap', 'dense_beside_experts', 'package')} "
        "--batches 1,32,8,4 --step-tokens 300,150 --repetitions 3",
        f"{SEVEN} --max-running-requests=32 --max-total-tokens=17000 --cuda-graph-bs-decode 1 4 8 32",
    ),
    kernels("expert-times", 80, "experts and their tiles at few tokens", "experts --tokens 1 4 8 16 --tune 10"),
    tests(
        "few-token-tests", 300, "what acts in steps of few tokens",
        f'-n 12 tests/gpu/test_kernels.py tests/gpu/test_kernels_experts.py tests/gpu/test_kernels_few_rows.py '
        f'tests/gpu/test_dependent_launch_gpu.py -k "{FEW}"',
    ),
    bench(
        "profiles", 330, "steps with and without MTP behind 500 tokens: kernel by kernel, beside the GPU's floor", "26b-a4b",
        f"{SHARED} {STOCK} {PACKAGE} --arm plain-stock:stock --arm plain:package --batches 1,32,8,80 --step-tokens 500,80 --repetitions 3 "
        "--profile 1,32,8,80 --roofline", f"{SEVEN} --max-running-requests=80 --max-total-tokens=64000",
    ),
    bench(
        "prefills", 300, "README: prompts of 7,000 tokens, first token of a lone prompt", "26b-a4b",
        f"{SHARED} --arm stock --arm package --workload prefill,ttft --repetitions 2", PREFILLS, says=FLASH,
    ),
    bench(
        "prefill-switches", 300, "prompts of 7,000 tokens, first token of a lone prompt: by switch", "26b-a4b",
        f"{SHARED} --arm package --arm no-flash:package,{NO_FLASH},only=prefill --arm eager:package,{NO_GRAPH},only=ttft "
        f"--arm experts-off:package,{G}_WITHOUT=prefill_experts,only=prefill --workload prefill,ttft --repetitions 2", PREFILLS, says=FLASH,
    ),
    bench(
        "flash", 280, "FlashAttention-4 in serving", "26b-a4b",
        f"{SHARED} {PACKAGE} --arm no-flash:package,mtp,{NO_FLASH} --workload summarize --repetitions 2", POOLS, says=FLASH,
    ),
    bench(
        "serve", 480, "README: 80 summaries and 80 chats", "26b-a4b",
        f"{STOCK_RATIO} {PACKAGE} --workload summarize,chat --rounds 1 --repetitions 2", GRAPHS, says=FLASH,
    ),
    bench(
        "pools", 600, "README: summaries that run at once, stock's own pools and ours", "26b-a4b",
        f"{STOCK} {PACKAGE} --workload summarize --rounds 1 --repetitions 2", f"{EAGER} --mem-fraction-static=0.85",
    ),
    start_times(
        "start", 600, "start of 26B-A4B with MTP against stock: cold, with an earlier start's list, warm; by part",
        f"{STOCK} --arm package:package,mtp,{G}_COMPILE_AHEAD=1", "--cold --listed --warm",
    ),
    start_times("start-serial", 200, "a cold start without COMPILE_AHEAD", f"--arm serial:package,mtp,{G}_COMPILE_AHEAD=0", "--cold"),
    tests("fast-paths", 200, "that the fast paths are taken", *engines("fast_paths")),
    kernels("chain", 100, "what each launch of a step's layer costs", "chain"),
    kernels("attention-long", 90, "attention of steps behind long contexts", "attention --layer full --requests 8 32 --keys 8192 65536"),
    kernels("products", 120, "dense products of few rows against cuBLAS", "linear"),
    kernels(
        "prefill-experts", 210, "a chunk's experts against SGLang and libraries", "prefill-experts --tokens 8192 2048 16384 1024 --tune 5",
    ),
    kernels("row-tiles", 90, "layouts of norms and rotation for many rows", "layer-parts --rows 8192 1024 --tune 8"),
    kernels("prefill-attention", 180, "prefill attention against SGLang's and FlashAttention-4", "prefill-attention --tune 10"),
    Stage(
        "expert-gelu", 240, "the patch expert_gelu on a GPU: wrong without it, right with it",
        (("bash", "-c", f"{PYTHON} crash_repro/expert_gelu.py && ! {G}_WITHOUT=expert_gelu {PYTHON} crash_repro/expert_gelu.py"),),
    ),
    lora_steps("lora-e2b", 300, "e2b", "--arms stock base lora --separate", "tiny-e2b"),
    lora_steps("lora-26b", 400, "26b-a4b", "--arms base lora --separate", "tiny-26b-a4b"),
    bench(
        "pair", 240, "FlashAttention-4 for prefills only, by SGLang's flags", "26b-a4b",
        f"{PACKAGE} --arm pair:package,mtp,{SPLIT} --workload summarize --rounds 1 --repetitions 1", EAGER,
    ),
    bench(
        "fa4", 240, "FlashAttention-4 for everything", "26b-a4b",
        f"--together 2 {PACKAGE} --arm fa4:package,mtp,--attention-backend=fa4 --batches 1,8,32 --step-tokens 700,200 --repetitions 3",
        TWO.replace("--attention-backend=triton ", "", 1),
    ),
    bench(
        "chunks", 260, "prompts of 8,000 tokens: what a prefill is made of, and chunks twice as long", "26b-a4b",
        f"{SHARED} --arm package --arm no-flash:package,{NO_FLASH} --arm chunk-16384:package,--chunked-prefill-size=16384 "
        "--batches 1,8 --step-tokens 8000,8 --repetitions 5 --profile 8 --roofline",
        f"{SEVEN} --max-total-tokens=70000 --swa-full-tokens-ratio=0.6",
    ),
    bench(
        "debug", 200, "what SGLANG_GEMMA4_DEBUG costs", "26b-a4b",
        f"--together 2 {PACKAGE} --arm debug:package,mtp,{G}_DEBUG=1 --batches 1,32 --step-tokens 700,200 --repetitions 3", TWO,
    ),
    tests(
        "kernel-tests", 400, "all kernels, hundreds of shapes",  # "shorter" needs the card alone
        '-n 8 tests/gpu/test_kernels.py tests/gpu/test_kernels_decoder_layer.py tests/gpu/test_kernels_experts.py '
        'tests/gpu/test_kernels_few_rows.py tests/gpu/test_kernels_heads.py tests/gpu/test_dependent_launch_gpu.py -k "not shorter"',
        beside=False,
    ),
)  # fmt: skip

GROUPS = {
    "gains": tuple(stage.name for stage in STAGES if stage.decides.startswith("README")),
    "tests": tuple(stage.name for stage in STAGES if stage.name.endswith("tests")),
}
"""Names that stand for several stages."""
