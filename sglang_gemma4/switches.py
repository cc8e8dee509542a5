"""Every environment switch of the package, in one table.

The README list, ``sglang-gemma4 patches``, the banner and ``doctor`` are all made from ``SWITCHES``.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

TRUE = ("1", "true", "on", "yes")
FALSE = ("0", "false", "off", "no")


class SwitchError(ValueError):
    """A switch holds something that is neither true nor false."""


@dataclass(frozen=True)
class Switch:
    """One boolean environment variable: its default, what it turns on, and words beside 1 that turn it on.

    ``zero`` says what 0 selects, where a patch is applied at 0 (``Patch.at``); ``other_name`` is read where ``name`` is not set.
    """

    name: str
    default: bool
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
PREFILL_GRAPH_FOR_MM = "SGLANG_ENABLE_PIECEWISE_CUDA_GRAPH_FOR_MM"
DEBUG_DIR = "SGLANG_GEMMA4_DEBUG_DIR"
"""Not a switch: the directory for dumps of SGLANG_GEMMA4_DEBUG."""
CACHE_DIR = "SGLANG_GEMMA4_CACHE_DIR"
"""Not a switch: the folder of what is kept for the next start (start/folder.py); empty keeps and reads nothing."""
SHARED_WEIGHTS = "SGLANG_GEMMA4_SHARED_WEIGHTS"
"""Not a switch: what `bench --share-weights` sets, BYTES:FOLDER (tiny/shared_weights.py)."""

_TABLE = (
    Switch(MASTER, True, "The whole package; 0 leaves stock SGLang as it is."),
    Switch(STRICT, False, "End the process at the first patch that cannot be applied, instead of going on without it."),
    Switch(
        CPU_ENGINE,
        False,
        "The CPU reference engine (torch kernels, float32); `sglang-gemma4 serve` sets it where there is no GPU. "
        f"It is a platform, not a change to Gemma 4, so it stays when {MASTER}=0 asks for stock behaviour.",
    ),
    Switch(PREFLIGHT, True, "Refuse assistants, draft lengths, backends and checkpoints that do not fit, before any weight is loaded."),
    Switch(
        "SGLANG_GEMMA4_MTP_DEFAULTS",
        True,
        "With only --speculative-draft-model-path given (`auto`: the -assistant beside the model): NEXTN, 3 steps, topk 1, 4 draft tokens.",
    ),
    Switch(
        FORCE_EAGLE,
        False,
        "NEXTN and EAGLE stay EAGLE where the draft's config.json names a Gemma 4 assistant but loads as a class with KV of its own; a "
        "frozen assistant, which has none, is refused.",
    ),
    Switch("SGLANG_GEMMA4_REPORT", True, "The start-up banner, the start table, and the patch list in /server_info."),
    Switch("SGLANG_GEMMA4_COMPILE_AHEAD", False, "While weights load, compile the kernels of an earlier start (off until measured)."),
    Switch("SGLANG_GEMMA4_PATCH_METRICS", True, "The patch list on /metrics, where the server has --enable-metrics."),
    Switch("SGLANG_GEMMA4_TEXT_ONLY_CONFIG", True, "Load text-only checkpoints as transformers 5.19 saves them."),
    Switch("SGLANG_GEMMA4_UNIFIED_CONFIG", True, "Load 12B checkpoints (Gemma 4 unified) as transformers 5.19 saves them."),
    Switch("SGLANG_GEMMA4_ROUTER_SCALE", True, "The MoE router's scale is applied on every path and follows weight updates."),
    Switch(
        "SGLANG_GEMMA4_WEIGHT_UPDATES", True, "Weight updates reach the model they are for, with MTP too; one that fits none is refused."
    ),
    Switch("SGLANG_GEMMA4_RELEASED_MEMORY", True, "After release and resume of memory nothing is missing that no checkpoint holds."),
    Switch("SGLANG_GEMMA4_IMAGE_CACHE", True, "After a weight update images and sounds are encoded again."),
    Switch(
        "SGLANG_GEMMA4_EXPERT_GELU",
        True,
        "On a card the experts compute gelu by tanh, as the config says; stock by erf (its kernels were compared under an interpreter; "
        "`crash_repro/expert_gelu.py` has not run on a card yet).",
    ),
    Switch(
        "SGLANG_GEMMA4_MOE_TILES",
        True,
        "The experts' GEMMs use tiles measured on this card for prefill chunks (`sglang-gemma4 tune-moe` makes them for another; an "
        "operator's SGLANG_MOE_CONFIG_DIR stands; 26B-A4B prefill of 8 to 64 requests 6 to 9 % shorter on an H200 than this package's with "
        "SGLang's own tiles, in two repetitions; no arm of stock SGLang beside it, `runs/2026-11-22-26b-experts`).",
    ),
    Switch(
        "SGLANG_GEMMA4_GROUPED_EXPERTS",
        True,
        "The experts at 32 to 320 tokens in four launches, the activation in the first product (2 to 5 % faster by itself, "
        "`runs/2026-11-22-kernel-times`; MTP steps on an H200 2.6 and 3.4 % shorter at batch 8 and 32 than this package's without it, 1.5 "
        "% at 64, where the ranges of three repetitions meet, stock beside, `runs/2026-11-23-26b-pieces`).",
    ),
    Switch(
        "SGLANG_GEMMA4_FEW_TOKEN_EXPERTS",
        True,
        "Routing and experts at 1 to 16 tokens in three launches, where SGLang takes six (5 to 7 % less time by themselves on an H200, "
        "`runs/2026-11-23-few-token-experts`; 26B-A4B's MTP steps 1.5 % shorter at batch 1, three passes beside stock, "
        "`runs/2026-11-23-26b-few-tokens`).",
    ),
    Switch(
        "SGLANG_GEMMA4_PREFILL_EXPERTS",
        True,
        "On Hopper, the experts at 1,024 tokens and more in three launches after the rows are aligned, the activation in the first "
        "product, weights through tensor descriptors (26B-A4B on an H200, with tiles that were replaced by faster ones since: a prompt of "
        "8,000 tokens takes 6.5 % less time than with this package without it, eight 5.0 %, five repetitions, ranges apart, "
        "`runs/2026-11-23-26b-prefill-experts`; with these, 30 prompts of 7,000 go through at least 4 % faster, "
        "`runs/2026-11-23-26b-prefill`).",
    ),
    Switch("SGLANG_GEMMA4_TRITON_WINDOW", True, "Triton decode attends to the whole sliding window, not one key less."),
    Switch(
        "SGLANG_GEMMA4_VERIFY_ATTENTION",
        True,
        "MTP's verify step on triton: all query tokens and heads of a KV head in one tile, keys split over programs (5 to 28 times as "
        "fast by itself; with the next two, 26B-A4B's steps on an H200 took 12.1, 35.3, 55.6 ms with stock at batch 1, 32, 64, and 7.1, "
        "19.5, 23.9 with the package, `runs/2026-11-22-26b-kernels-steps`; at 0 it costs the package 24, 11, 28, 41 % of a step behind 300 "
        "tokens at batch 1, 8, 32, 64, `runs/2026-11-23-26b-pieces`).",
    ),
    Switch(
        "SGLANG_GEMMA4_DECODE_ATTENTION",
        True,
        "Decode and draft steps on triton through the same kernel (1.1 to 6 times as fast by itself; in a server with the one above).",
    ),
    Switch(
        "SGLANG_GEMMA4_PREFILL_ATTENTION",
        True,
        "Prefill on triton through a kernel with tiles for head_dim 256 and 512 (32 prompts of 1,000 tokens on an H200: 51 ms of "
        "attention, stock 141, `runs/2026-11-22-26b-kernels-steps`).",
    ),
    Switch(
        "SGLANG_GEMMA4_FLASH_PREFILL",
        True,
        "On Hopper, prefills of 1,024 tokens and more without images on triton go through FlashAttention-4 over keys in order, layers of "
        "the kinds that a measurement at the start finds faster so (26B-A4B on an H200, against this package without it: a prompt of "
        "8,000 tokens takes 13 % less time, eight 11 %, five repetitions, ranges apart, `runs/2026-11-23-26b-prefill-flash`; 30 prompts "
        "of 7,000 10 % faster, `runs/2026-11-23-26b-prefill`). Compiling and measuring took 7 to 19 s of a start, other engines starting "
        "beside.",
    ),
    Switch("SGLANG_GEMMA4_SYNC_MTP", True, "MTP runs with --disable-overlap-schedule (stock crashes at the first batch)."),
    Switch(
        MTP_V2,
        True,
        "MTP drafts and verifies in SGLang's worker for the overlapped loop (v2).",
        zero="MTP runs in a synchronous worker (v1), without overlap scheduling: plain and slower, the reference for v2 and the safe mode.",
    ),
    Switch(
        "SGLANG_GEMMA4_FROZEN_VIEWS",
        True,
        "The MTP draft sees all of the target's KV state on every attention backend (fa4, prefill/decode pairs), or the start is refused.",
    ),
    Switch(
        "SGLANG_GEMMA4_FROZEN_CHAIN",
        True,
        "The MTP draft with topk 1 is a chain of maxima, and the host waits for nothing in a step (steps 3 to 13 % "
        "shorter on an H200 together with the next two, `runs/2026-11-21-26b-mtp-v2`; tokens and accept length are stock's).",
    ),
    Switch(
        "SGLANG_GEMMA4_VERIFY_ARGMAX",
        False,
        "The target's token of a greedy verify step of up to 128 rows in one pass over its head, without logits in memory; where a request "
        "is sampled or wants logits they are made after the graph, so that a near tie may go by a neighbour (off until measured on a "
        "card: soft-cap and maximum take 112 of an MTP step's 17,080 µs at batch 32, `runs/2026-11-23-26b-steps-and-floor`).",
    ),
    Switch(
        "SGLANG_GEMMA4_DRAFT_GRAPH",
        True,
        "MTP draft at topk 1 on triton: its attention metadata is prepared inside its CUDA graph (never timed alone).",
    ),
    Switch(
        "SGLANG_GEMMA4_SHARED_QUERY",
        True,
        "Layers that share KV (the MTP draft's; E2B: 20 of 35) project queries only (timed only with the two above, on 26B-A4B).",
    ),
    Switch(
        "SGLANG_GEMMA4_YOCO",
        True,
        "Fast prefill of E2B and E4B: the layers that share KV see only the rows that are read, the last of each prompt and those of "
        "prompt log-probabilities (30 prompts of 7,000 tokens on an H200, all defaults: E2B 1.9 times stock's throughput, 2.0 times under "
        "MTP, two passes each, `runs/2026-11-22-e2b-yoco`; E4B 1.9 times, three, `runs/2026-11-22-e4b-yoco`).",
    ),
    Switch(
        "SGLANG_GEMMA4_YOCO_GRAPH",
        True,
        "With SGLANG_GEMMA4_YOCO and prefill graphs, on triton: those layers are replayed from CUDA graphs of up to 32 requests too "
        "(median TTFT of a lone prompt of E2B on an H200, with it, without, stock: 13, 39, 48 ms at 128 tokens in three passes, 14, 44, "
        "57 at 1,000 in two, two and three, `runs/2026-11-23-e2b-first-token`). Six graphs took 12.6 s, the decode graphs behind them "
        "11.7 s less; what they hold was not measured.",
    ),
    Switch(
        "SGLANG_GEMMA4_TRIPLE_NORM",
        True,
        "The norms between attention and FFN (residual, dense, router and expert input) are one launch (2.2 to 3.1 times as "
        "fast by itself; MTP steps of 26B-A4B on an H200 5.3, 3.1, 1.3 % shorter than this package's without it at batch 1, 8, 32, stock "
        "beside, `runs/2026-11-23-26b-pieces`).",
    ),
    Switch(
        "SGLANG_GEMMA4_LAYER_TAIL",
        True,
        "The end of a layer and the next layer's input norm are one launch (1.2 to 1.7 times as fast by itself; MTP steps 2.9, 0.7, 1.5 % "
        "shorter at batch 1, 8, 32, measured as the one above).",
    ),
    Switch(
        "SGLANG_GEMMA4_DEPENDENT_LAUNCH",
        True,
        "On Hopper and later the package's kernels of a decode step start, and fetch weights, while the kernel before still ends (MTP "
        "steps on an H200 4.7 % shorter than this package's without it at batch 1, 1.3 % at 8; 0.7 and 0.4 % at 32 and 64, where the "
        "ranges of three repetitions meet, `runs/2026-11-23-26b-later-pieces`, with a part of FEW_ROW_LINEAR's launches; with all of them "
        "and KV_WRITE the card idles 2 % of a step at batch 1, 8.5 % without the three, `runs/2026-11-22-26b-mtp-steps`).",
    ),
    Switch(
        "SGLANG_GEMMA4_FEW_ROW_LINEAR",
        True,
        "Dense products of up to 16 rows read the weight once, in one launch, with the FFN's activation inside; a router's and the first "
        "of an FFN beside experts up to 32 rows, such an FFN's second at one row (a layer of 26B-A4B on an H200 at one token 86 µs, 93 "
        "with cuBLAS's, in two tables that differ by 0.3 for the same layer, at 4 about 148 for 156, tables 2.5 apart; with Triton 3.6, "
        "`runs/2026-11-23-26b-layer-chain`. In an engine the present tiles' share is not measured, nor E2B's tiles, chosen by the same "
        "rule).",
    ),
    Switch(
        "SGLANG_GEMMA4_ROUTER_CHOICE",
        True,
        "With FEW_TOKEN_EXPERTS, the router's product also chooses, in one launch (a layer of 26B-A4B on an H200 80 µs for 85 at one "
        "token, 145.5 for 146.3 at 4, no difference at 16; layers by themselves, with Triton 3.6, `runs/2026-11-23-26b-layer-chain`).",
    ),
    Switch(
        "SGLANG_GEMMA4_DENSE_OVERLAP",
        True,
        "A MoE layer's dense FFN runs beside its router and experts in decode graphs (MTP steps on an H200 4.7 % shorter than this "
        "package's without it at batch 1, 2.1 % at 8, 1.8 % at 32, 1.1 % at 64, `runs/2026-11-22-26b-step-switches`; 5.5, 2.3, 1.6 and "
        "0.8 %, `runs/2026-11-23-26b-later-pieces`, where the ranges meet at 32 and the drafts had not quite the same kernels; three "
        "repetitions each, no arm of stock under MTP).",
    ),
    Switch(
        "SGLANG_GEMMA4_PLE_TAIL",
        True,
        "The end of a layer with per-layer embeddings (E2B, E4B) is three launches, not seven (2.7 to 3.2 times as fast by itself on an "
        "H200, `runs/2026-11-22-kernel-times`; in a server with FEW_ROW_LINEAR).",
    ),
    Switch(
        "SGLANG_GEMMA4_QKV_ROPE",
        True,
        "The norms of queries, keys and values and their rotation are one launch (1.8 to 4.6 times as fast by itself; with KV_WRITE, MTP "
        "steps of 26B-A4B 6.0, 2.2, 1.8, 2.8 % shorter at batch 1, 8, 32, 64, `runs/2026-11-23-26b-pieces`).",
    ),
    Switch(
        "SGLANG_GEMMA4_KV_WRITE",
        True,
        "With SGLANG_GEMMA4_QKV_ROPE, on triton: that launch writes keys and values to the KV pool too, one launch a layer less (measured "
        "with DEPENDENT_LAUNCH only).",
    ),
    Switch(
        "SGLANG_GEMMA4_PREFILL_GRAPH",
        True,
        "Prefills replay CUDA graphs of the language model, images included: of up to 4,096 tokens on E2B and E4B, 2,048 on 26B-A4B, 512 "
        "on 31B, or the operator's --cuda-graph-bs-prefill or --cuda-graph-max-bs-prefill; where this is not set, "
        f"{PREFILL_GRAPH_FOR_MM} is the switch (TTFT of a lone prompt of 1,000 tokens on an H200, from graphs, eager, stock: 26B-A4B "
        "30, 68, 77 ms, `runs/2026-11-23-26b-prefill`; E2B without YOCO_GRAPH 42, 71, 61, but at 128 tokens 65, 91, 62, "
        "`runs/2026-11-23-e2b-images-ttft`; 16 to 73 s of a start with all kernels to compile, and 0.4 to 0.6 GiB).",
        other_name=PREFILL_GRAPH_FOR_MM,
    ),
    Switch(
        "SGLANG_GEMMA4_DRAFT_ARGMAX",
        True,
        "With SGLANG_GEMMA4_FROZEN_CHAIN, the draft's head and the maximum over it are one kernel, without logits in memory; the centroid "
        "head of E2B and E4B likewise (1.1 to 1.7 times as fast as the chain by itself; MTP steps of 26B-A4B on an H200 0.5 % shorter "
        "than this package's without it at batch 1 and 8, 0.8 % at 32 and 64, three repetitions, whose ranges meet at 32, "
        "`runs/2026-11-23-26b-later-pieces`).",
    ),
    Switch(
        "SGLANG_GEMMA4_SHARDED_HEAD",
        False,
        "Under tensor parallelism each rank scores its range of the vocabulary; with SGLANG_GEMMA4_DRAFT_ARGMAX the draft's too, of which "
        "only maxima travel (off until measured on two H200).",
    ),
    Switch(
        "SGLANG_GEMMA4_DRAFT_PHASE",
        False,
        "The MTP draft's query is rotated to its own token's position, as in transformers (tiny pairs: accept length +1.3 to +2.3 % in the "
        "model's own turn, -0.8 to +1.9 % on 64 forced tokens of text, `runs/2026-11-22-tiny-accept-length`; not measured on released "
        "weights or a card).",
    ),
    Switch(
        "SGLANG_GEMMA4_ADAPTIVE_DRAFT",
        True,
        "--speculative-adaptive works for MTP: the draft length, 0 (plain decoding) included, that measures fastest at each batch size "
        "(on an H200, every draft refused, it lost 3.7 % at batch 1, 1.8 % at 8, 1.5 % at 32, 1.9 % at 64 beside this package without a "
        "draft, `runs/2026-11-22-26b-adaptive-refused`, up to 4.4 % in short passages after a start, `runs/2026-11-22-26b-step-switches`; "
        "no longer steps where drafts are accepted, `runs/2026-11-22-26b-adaptive-accepted`).",
    ),
    Switch(
        "SGLANG_GEMMA4_VERIFY_PENALTIES",
        True,
        "Under MTP at topk 1, penalties and min_new_tokens count tokens as plain decoding does; stock counts one token a verify step.",
    ),
    Switch(
        "SGLANG_GEMMA4_VERIFY_CUTS",
        True,
        "Under speculation, min_p is applied, and top_k and top_p are judged as in plain sampling; stock ignores the one and cuts one "
        "after the other.",
    ),
    Switch(
        "SGLANG_GEMMA4_STOP_ORDER",
        True,
        "Under speculation an answer ends at the earliest stop, as it would token by token; stock returns text past it.",
    ),
    Switch(
        "SGLANG_GEMMA4_PD_DRAFT",
        True,
        "MTP runs behind a prefill server (--disaggregation-mode); stock's servers crash at the first request.",
    ),
    Switch(
        "SGLANG_GEMMA4_LORA",
        True,
        "LoRA adapters (--lora-paths) work: each layer's own sizes, absent K and V, the dense FFN of MoE.",
    ),
    Switch("SGLANG_GEMMA4_LORA_MTP", True, "LoRA and MTP go together: the target verifies with adapters, the draft has none."),
    Switch(
        "SGLANG_GEMMA4_IMAGE_MASKS",
        True,
        "Images attend both ways where the config says so (26B-A4B, 31B: on sliding layers), whole in every prefill chunk; a backend that "
        "cannot is refused at the start.",
    ),
    Switch("SGLANG_GEMMA4_IMAGE_PADDING", True, "Padding patches of an image stay out of its first soft token."),
    Switch(
        "SGLANG_GEMMA4_LANGUAGE_MODEL_ONLY",
        True,
        "--language-model-only leaves Gemma 4's vision and audio towers out, whose memory goes to the KV pools (stock refuses the flag).",
    ),
    Switch(
        "SGLANG_GEMMA4_BATCHED_VISION",
        True,
        "Images and video frames of a batch go through the vision tower together, without their padding, which stock's GPU attention does "
        "not mask (E2B, 600 images on an H200: 1.96 times stock's throughput in two passes each, `runs/2026-11-22-e2b-images-ttft`).",
    ),
    Switch(
        "SGLANG_GEMMA4_IMAGE_TRANSPORT",
        True,
        "On one card, where the operator chose none, image features go from the tokenizer to the scheduler by --mm-feature-transport "
        "cuda_ipc (a container that forbids CUDA IPC needs 0), for "
        "1 GiB of the KV memory (E2B, 600 images on an H200: 1.86 times this package's throughput without it, two passes each, "
        "`runs/2026-11-22-e2b-images-ttft`; stock gains 1.20 times by that flag, `runs/2026-11-23-e2b-images-ttft`).",
    ),
    Switch("SGLANG_GEMMA4_AUDIO_PADDING", True, "A sound is not filled with silence before it is encoded."),
    Switch(
        "SGLANG_GEMMA4_MEDIA_ERRORS",
        True,
        "A media file that is not there, an image too large to decode, or a video that no decoder is installed for, is a 400, not a 500.",
    ),
    Switch(
        "SGLANG_GEMMA4_ANSWER_PARSER",
        True,
        "Thoughts and tool calls are read by one state machine: linear time, the same streamed or not.",
        other_name="SGLANG_GEMMA4_TOOL_CALL_INDEX",
    ),
    Switch("SGLANG_GEMMA4_PARSER_DEFAULTS", True, "The gemma4 parsers of thoughts and tool calls are used where the operator named none."),
    Switch(
        "SGLANG_GEMMA4_TOOL_GRAMMAR", True, "Tool calls that must come, and those of strict tools, are constrained in Gemma 4's own syntax."
    ),
    Switch("SGLANG_GEMMA4_PAGE_TABLE", True, "No page-table row runs into the next one where draft tokens pass the end of the context."),
    Switch(
        "SGLANG_GEMMA4_SWA_RATIO",
        True,
        "MoE Gemma 4 whose pools are sized by a ratio: a sliding pool of 0.15 of the full one (SGLang: 0.8), unless the operator set it. "
        "Many requests below 10,000 tokens at once may starve for it (`sglang-gemma4 capacity`).",
    ),
    Switch(
        "SGLANG_GEMMA4_SWA_SIZING",
        True,
        "The sliding pool is sized by running requests and window, the full pool gets the rest; 0: by a ratio. "
        "--swa-full-tokens-ratio stands where it was given.",
        also_on=("auto",),
    ),
    Switch(
        "SGLANG_GEMMA4_SWA_ADMISSION",
        False,
        "A prefill is admitted only into sliding-pool tokens that running requests will not take; stock admits it and retracts when they "
        "run out (not yet measured on a GPU: where one more request just does not fit, waiting can cost more than a retraction).",
    ),
    Switch(
        "SGLANG_GEMMA4_POOL_CHECKS",
        True,
        "Refuse to start with a pool too small for the --context-length or --swa-full-tokens-ratio asked for.",
    ),
    Switch("SGLANG_GEMMA4_SHARED_KV", True, "KV-shared layers (E2B: 20 of 35, E4B: 18 of 42) get no KV buffers of their own."),
    Switch("SGLANG_GEMMA4_DRAFT_BUDGET", True, "The MTP draft, which owns no KV, costs no share of the KV pools."),
    Switch(
        "SGLANG_GEMMA4_DUMMY_WEIGHTS",
        True,
        "--load-format dummy fills Gemma 4 with weights of realistic spread, so that tokens and experts vary.",
    ),
    Switch(
        "SGLANG_GEMMA4_DEBUG",
        False,
        "Check every index that attention is about to follow, on every backend; end with a named error and a dump "
        f"({DEBUG_DIR}, default the temporary directory) that `sglang-gemma4 doctor dump` explains.",
    ),
    Switch("SGLANG_TRTLLM_MHA_DEBUG", False, "The same, where the backend is trtllm_mha."),
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
    raw = environ.get(name, "").strip().lower()
    if raw == "":
        return switch.default
    if raw in TRUE or raw in switch.also_on:
        return True
    if raw in FALSE:
        return False
    raise SwitchError(f"{name}={environ[name]!r} is not a boolean; set it to 1 or 0, or unset it (default {int(switch.default)})")


def check_all(environ: Mapping[str, str] = os.environ) -> list[str]:
    """One message for each switch with a non-boolean value and each unknown ``SGLANG_GEMMA4*`` name."""
    problems = []
    for name in SWITCHES:
        try:
            is_on(name, environ)
        except SwitchError as error:
            problems.append(str(error))
    for name in sorted(environ):
        if name.startswith(MASTER) and name not in SWITCHES and name not in (DEBUG_DIR, CACHE_DIR, SHARED_WEIGHTS):
            problems.append(f"{name} is not a switch of this package; `sglang-gemma4 patches` lists them")
    return problems
