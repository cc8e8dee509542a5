"""Every environment switch of the package, in one table; what each patch does and why is with the patch (``patches/``).

``docs/switches.md``, ``sglang-gemma4 patches`` and ``doctor`` are made from ``SWITCHES``. COMPILE_AHEAD is in the group prefill, since
most of what it compiles is FlashAttention-4 and the kernels of prefill graphs.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

TRUE = ("1", "true", "on", "yes")
FALSE = ("0", "false", "off", "no")

Group = Literal["correctness", "attention", "layers and experts", "MTP", "prefill", "images", "memory", "diagnosis"]
GROUPS: tuple[Group, ...] = get_args(Group)


class SwitchError(ValueError):
    """A switch holds something that is neither true nor false, or contradicts another."""


@dataclass(frozen=True)
class Switch:
    """One boolean environment variable: its default, its group in tables, and in one sentence what it turns on.

    ``also_on`` are words beside 1 that turn it on. ``zero`` says what 0 selects, where a patch is applied at 0 (``Part.at``).
    ``other_name`` is a variable, of SGLang's or an older one of ours, that is read where ``name`` is not set.
    """

    name: str
    default: bool
    group: Group
    meaning: str
    also_on: tuple[str, ...] = ()
    zero: str = ""
    other_name: str = ""

    @property
    def both(self) -> str:
        """What 1 and 0 mean, for tables."""
        return f"{self.meaning} 0: {self.zero}" if self.zero else self.meaning


MASTER = "SGLANG_GEMMA4"
STRICT = "SGLANG_GEMMA4_STRICT"
CPU_ENGINE = "SGLANG_GEMMA4_CPU"
PREFLIGHT = "SGLANG_GEMMA4_PREFLIGHT"
FORCE_EAGLE = "SGLANG_GEMMA4_FORCE_EAGLE"
MTP_V2 = "SGLANG_FROZEN_KV_MTP_V2"
TRTLLM_DEBUG = "SGLANG_TRTLLM_MHA_DEBUG"
PREFILL_GRAPH_FOR_MM = "SGLANG_ENABLE_PIECEWISE_CUDA_GRAPH_FOR_MM"
WITHOUT = "SGLANG_GEMMA4_WITHOUT"
"""Not a switch: names of patches to leave out, joined by commas."""
DEBUG_DIR = "SGLANG_GEMMA4_DEBUG_DIR"
"""Not a switch: the directory for dumps of SGLANG_GEMMA4_DEBUG."""
CACHE_DIR = "SGLANG_GEMMA4_CACHE_DIR"
"""Not a switch: the folder for files kept until the next start (start/folder.py); empty: nothing is kept or read."""
SHARED_WEIGHTS = "SGLANG_GEMMA4_SHARED_WEIGHTS"
"""Not a switch: what `bench --share-weights` sets, BYTES:FOLDER (tiny/shared_weights.py)."""
VLLM_PYTHON = "SGLANG_GEMMA4_VLLM_PYTHON"
"""Not a switch: the Python whose environment has vLLM, for `bench --arm vllm` (benchmark/vllm.py)."""
LOCAL_MEDIA = "SGLANG_GEMMA4_LOCAL_MEDIA"
"""Not a switch: FOLDER:FOLDER, absolute paths below which requests over HTTP may name files as media (serving/media/addresses.py)."""
GRAPH_SIZES = "SGLANG_GEMMA4_GRAPH_SIZES"
BESIDE = "SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY"
BESIDE_TOKENS = "SGLANG_GEMMA4_BESIDE_TOKENS"
"""Not a switch: the most prompt tokens in a mixed batch (speculative/prompt_chunks.py); unset: measured times decide.
"""
BESIDE_GAP = "SGLANG_GEMMA4_BESIDE_GAP"
"""Not a switch: limit on inter-token latency while prompts are prefilled: one of :data:`POLICY_WORDS`, a number of
plain decode steps or, with ``ms`` after the number, milliseconds (speculative/beside_bounds.py); unset: balanced."""
POLICY_WORDS = ("latency", "balanced", "throughput")
REQUEST_TOKENS = "SGLANG_GEMMA4_REQUEST_TOKENS"
"""Not a switch: tokens of a typical request, prompt and answer, for which the KV pools are sized (memory/given.py); unset: 8,192."""
RESERVE_GIB = "SGLANG_GEMMA4_RESERVE_GIB"
"""Not a switch: GiB of the GPU kept free besides weights and KV, or `auto`: calculated (memory/reserve.py); unset:
SGLang's rule."""
FOUR_BIT_ROWS = "SGLANG_GEMMA4_FOUR_BIT_ROWS"
"""Not a switch: the most rows of a GEMM for which our kernel multiplies a 4-bit dense weight, with the weight as
loaded. 0: Marlin multiplies all. Unset: :data:`HOPPER_FOUR_BIT_ROWS` on a Hopper, elsewhere 0."""
MOST_FOUR_BIT_ROWS = 64
"""Most rows that our kernel takes (``kernels/dense/few_row_linear.py``)."""
HOPPER_FOUR_BIT_ROWS = 32
"""At 64 rows dequantising the weights for cuBLAS is faster than our kernel on an H200, at 32 rows it is much slower
(``runs/2026-11-26-26b-h200-int4``)."""
NO_SWITCHES = (
    WITHOUT, DEBUG_DIR, CACHE_DIR, SHARED_WEIGHTS, VLLM_PYTHON, BESIDE_TOKENS, BESIDE_GAP, REQUEST_TOKENS, RESERVE_GIB, FOUR_BIT_ROWS,
    LOCAL_MEDIA,
)  # fmt: skip

_TABLE = (
    Switch(
        "SGLANG_GEMMA4_CONFIGS",
        True,
        "correctness",
        "Text-only, unified and quantised checkpoints load with transformers' names; raw texts get one BOS.",
    ),
    Switch(
        "SGLANG_GEMMA4_MODEL_FIXES",
        True,
        "correctness",
        "Router scale, gelu, window, page tables, chunks, and KV from host or prefill server are correct.",
    ),
    Switch(
        "SGLANG_GEMMA4_WEIGHT_UPDATES",
        True,
        "correctness",
        "No stale state is left after a weight update, or after memory was released and resumed.",
    ),
    Switch("SGLANG_GEMMA4_ANSWER_PARSER", True, "correctness", "Thoughts and tool calls are parsed correctly, without a parser flag."),
    Switch(
        "SGLANG_GEMMA4_TOOL_GRAMMAR", True, "correctness", "Forced tool calls follow Gemma 4's syntax; runs of blanks in JSON are limited."
    ),
    Switch(
        "SGLANG_GEMMA4_REQUEST_CHECKS",
        True,
        "correctness",
        "Requests are checked before the scheduler; one that fails in a step fails alone.",
    ),
    Switch("SGLANG_GEMMA4_LORA", True, "correctness", "LoRA adapters work, with MTP too."),
    Switch(
        "SGLANG_GEMMA4_ATTENTION", True, "attention", "Prefill, decode and MTP's verify step on triton use attention kernels for Gemma 4."
    ),
    Switch("SGLANG_GEMMA4_QKV", True, "attention", "One launch norms and rotates queries, keys and values and writes the KV pool."),
    Switch(
        "SGLANG_GEMMA4_EXPERTS",
        True,
        "layers and experts",
        "Experts use this package's kernels and tiles for few tokens, many tokens and prefill.",
    ),
    Switch("SGLANG_GEMMA4_NORMS", True, "layers and experts", "The norms of a layer are fused into fewer launches."),
    Switch("SGLANG_GEMMA4_FEW_ROW_LINEAR", True, "layers and experts", "Dense GEMMs of a few rows read each weight once, in one launch."),
    Switch(
        "SGLANG_GEMMA4_DEPENDENT_LAUNCH", True, "layers and experts", "On Hopper, a kernel starts before the previous kernel has ended."
    ),
    Switch(
        "SGLANG_GEMMA4_DENSE_OVERLAP",
        True,
        "layers and experts",
        "In decode graphs a MoE layer's dense FFN runs concurrently with its experts.",
    ),
    Switch(
        GRAPH_SIZES,
        True,
        "layers and experts",
        "Decode graphs exist where padding is costly (26B-A4B without speculation; 1: with speculation too).",
    ),
    Switch(
        "SGLANG_GEMMA4_MTP_DEFAULTS",
        True,
        "MTP",
        "A draft path alone selects NEXTN with 3 steps; `auto` finds the -assistant next to the model.",
    ),
    Switch(FORCE_EAGLE, False, "MTP", "NEXTN and EAGLE stay EAGLE for a Gemma 4 draft with its own KV."),
    Switch(
        MTP_V2,
        True,
        "MTP",
        "MTP drafts and verifies in SGLang's overlapped loop (v2).",
        zero="a synchronous worker (v1): slower, simple, the safe mode.",
    ),
    Switch(
        "SGLANG_GEMMA4_FROZEN_VIEWS",
        True,
        "MTP",
        "MTP works on every backend, without overlap, with prefill/decode servers and adaptively.",
    ),
    Switch("SGLANG_GEMMA4_FROZEN_CHAIN", True, "MTP", "At topk 1 each draft token is an argmax, without host waits or logits in memory."),
    Switch("SGLANG_GEMMA4_VERIFY_RULES", True, "MTP", "Penalties, top-p, top-k, min-p and stops act with speculation as without it."),
    Switch("SGLANG_GEMMA4_SHARDED_HEAD", True, "MTP", "Each tensor-parallel rank scores its part of the vocabulary."),
    Switch(
        "SGLANG_GEMMA4_FLASH_PREFILL", True, "prefill", "On Hopper, long prefills use FlashAttention-4 where it is measured to be faster."
    ),
    Switch(
        BESIDE,
        True,
        "prefill",
        "Prefill shares a batch with decode (26B-A4B on Hopper; 1: everywhere) or alternates (E2B, E4B).",
    ),
    Switch("SGLANG_GEMMA4_YOCO", True, "prefill", "Layers that share KV (E2B, E4B) compute only the prompt rows that are read."),
    Switch(
        "SGLANG_GEMMA4_PREFILL_GRAPH",
        True,
        "prefill",
        "Prefills of up to a few thousand tokens, also with images, are replayed from CUDA graphs.",
        other_name=PREFILL_GRAPH_FOR_MM,
    ),
    Switch(
        "SGLANG_GEMMA4_COMPILE_AHEAD",
        True,
        "prefill",
        "Kernels that are not on disk, mostly for prefill graphs, compile while weights load.",
    ),
    Switch(
        "SGLANG_GEMMA4_MEDIA_FIXES",
        True,
        "images",
        "Images and audio are read as in transformers, or not at all with --language-model-only.",
    ),
    Switch("SGLANG_GEMMA4_BATCHED_VISION", True, "images", "Images of a batch are encoded together, and their features stay on the GPU."),
    Switch(
        "SGLANG_GEMMA4_POOL_SIZES",
        True,
        "memory",
        "KV pools are sized by window and running requests; layers without KV take no memory.",
    ),
    Switch(MASTER, True, "diagnosis", "The whole package; 0 leaves stock SGLang as it is."),
    Switch(STRICT, False, "diagnosis", "The process ends at the first patch that cannot be applied."),
    Switch(
        "SGLANG_GEMMA4_REPORT", True, "diagnosis", "The log has a banner and a start table; /server_info and /metrics list the patches."
    ),
    Switch(PREFLIGHT, True, "diagnosis", "Unsupported models and flags are rejected before weights are loaded, with the reason."),
    Switch(
        "SGLANG_GEMMA4_DEBUG",
        False,
        "diagnosis",
        "Every index is checked before attention follows it; a bad one ends in a named error and a dump.",
        other_name=TRTLLM_DEBUG,
    ),
    Switch("SGLANG_GEMMA4_DUMMY_WEIGHTS", True, "diagnosis", "--load-format dummy fills in weights of realistic spread."),
    Switch(CPU_ENGINE, False, "diagnosis", f"The CPU reference engine; `serve` sets it without a GPU, and {MASTER}=0 leaves it on."),
)

SWITCHES: dict[str, Switch] = {switch.name: switch for switch in _TABLE}


def is_on(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Read one switch.

    Raises:
        KeyError: ``name`` is not in the table.
        SwitchError: the variable is set to something that is not a boolean.
    """
    switch = SWITCHES[name]
    if not environ.get(name, "").strip() and environ.get(switch.other_name, "").strip():
        name = switch.other_name
    found = _read(name, environ, switch.also_on, f"unset it (default {int(switch.default)})")
    return switch.default if found is None else found


def _read(name: str, environ: Mapping[str, str], also_on: tuple[str, ...], remedy: str) -> bool | None:
    raw = environ.get(name, "").strip().lower()
    if raw == "":
        return None
    if raw in TRUE or raw in also_on:
        return True
    if raw in FALSE:
        return False
    raise SwitchError(f"{name}={environ[name]!r} is not a boolean; set it to 1 or 0, or {remedy}")


def left_out(patch: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The variable that leaves this one patch out, whatever its switch says, or None."""
    return WITHOUT if patch in names_left_out(environ) else None


def part_is_on(patch: str, switch: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a patch of a switch is asked for: the switch is on, and the patch is not left out by itself."""
    return is_on(switch, environ) and left_out(patch, environ) is None


def names_left_out(environ: Mapping[str, str] = os.environ) -> set[str]:
    """Names of patches in SGLANG_GEMMA4_WITHOUT."""
    return {name for name in (each.strip() for each in environ.get(WITHOUT, "").split(",")) if name}


def check_name(name: str, value: str) -> None:
    """Refuse a variable of this package's kind that means nothing, or not with this value.

    Raises:
        SwitchError: it is no switch, or is not set to a boolean.
    """
    if name in NO_SWITCHES:
        return
    if name not in SWITCHES:
        raise SwitchError(
            f"{name} is not a switch of this package; unset it. `sglang-gemma4 patches` lists them, and {WITHOUT}=NAME leaves one patch out"
        )
    is_on(name, {name: value})


def four_bit_rows(capability: tuple[int, int] | None, environ: Mapping[str, str] = os.environ) -> int:
    """Rows up to which our kernel multiplies 4-bit dense weights as they were loaded; 0: they are repacked for
    Marlin.

    Args:
        capability: the GPU's compute capability, None without a GPU.

    Raises:
        SwitchError: the value is not a whole number from 0 to :data:`MOST_FOUR_BIT_ROWS`.
    """
    given = environ.get(FOUR_BIT_ROWS, "").strip()
    if not given:
        return HOPPER_FOUR_BIT_ROWS if capability is not None and capability[0] == 9 else 0
    if not given.isdecimal() or int(given) > MOST_FOUR_BIT_ROWS:
        raise SwitchError(
            f"{FOUR_BIT_ROWS}={given} is not a whole number of rows from 0 to {MOST_FOUR_BIT_ROWS}; a verify step of 4 requests with 4 "
            "draft tokens has 16, and 0 leaves all to Marlin"
        )
    return int(given)


def check_all(environ: Mapping[str, str] = os.environ) -> list[str]:
    """One message for each variable of this package that is unknown, no boolean, or contradicts another."""
    problems = []
    for name in [*SWITCHES, *sorted(name for name in environ if name.startswith(MASTER) and name not in SWITCHES)]:
        try:
            if name in SWITCHES:
                is_on(name, environ)  # also by its other name
            else:
                check_name(name, environ.get(name, ""))
        except SwitchError as error:
            problems.append(str(error))
    try:
        four_bit_rows(None, environ)
    except SwitchError as error:
        problems.append(str(error))
    return problems
