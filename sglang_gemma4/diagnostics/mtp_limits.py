"""Checks SGLang's resolved arguments for what MTP cannot run with, before any weight is loaded.

SGLang checks none of this for FROZEN_KV_MTP (``_handle_frozen_kv_mtp``, srt/arg_groups/speculative_hook.py:990). It does refuse pipeline
parallelism, unified memory, flex attention, LoRA, rejection sampling and, without our patch, adaptive drafts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_gemma4.diagnostics.preflight import ATTENTION_BACKENDS, refuse
from sglang_gemma4.speculative.views import NAMES

FIELDS = (
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_adaptive",
    "speculative_draft_attention_backend",
    "speculative_attention_mode",
    "kv_cache_dtype",
)
"""The arguments that :func:`check` reads, besides ``prefill_backend`` and ``decode_backend``."""

LENGTHS = FIELDS[:3]
TREE_BACKENDS = ("triton", "trtllm_mha")
"""Backends that can draft more than one candidate per step (frozen_kv_mtp_worker_v2.py:259)."""

CPU_BACKENDS = ("intel_amx", "torch_native")
"""Names of our CPU engine's attention, which supports views and trees."""


def tree_size(steps: int, topk: int) -> int:
    """Tokens of the largest draft: its start token, ``topk`` candidates in the first step, ``topk**2`` in each later one."""
    return 1 + topk + (steps - 1) * topk * topk


def check(arguments: Mapping[str, Any], views: bool = True, cpu_engine: bool = False) -> None:
    """Check the arguments that SGLang resolved for FROZEN_KV_MTP.

    Args:
        arguments: :data:`FIELDS`, and the attention backends of prefill and decode under ``prefill_backend`` and
            ``decode_backend``.
        views: the patch frozen_views is on, which has no adapter for other draft backends.
        cpu_engine: :data:`CPU_BACKENDS` are this package's.

    Raises:
        PreflightError: the draft could not start, would end the server at its first batch, or could let wrong tokens
            through.
    """
    refuse(_length_problems(arguments))
    refuse(_backend_problems(arguments, views, CPU_BACKENDS if cpu_engine else ()))


def _backend_problems(arguments: Mapping[str, Any], views: bool, own: tuple[str, ...]) -> Iterator[str]:
    prefill, decode = arguments["prefill_backend"], arguments["decode_backend"]
    draft = arguments["speculative_draft_attention_backend"]
    topk = arguments["speculative_eagle_topk"]
    if topk > 1:
        drafting, flag = (draft, "--speculative-draft-attention-backend") if draft else (decode, "--attention-backend")
        if drafting not in (*TREE_BACKENDS, *own):
            yield (
                f"--speculative-eagle-topk {topk}: MTP drafts trees on {' and '.join(TREE_BACKENDS)} only, not with {flag} {drafting}; "
                "use --speculative-eagle-topk 1, or --speculative-draft-attention-backend triton"
            )
        verifying = decode if arguments["speculative_attention_mode"] == "decode" else prefill
        if verifying == "trtllm_mha":
            # trtllm_mha_backend.py has no tree mask (:867, :984): a candidate would attend to its siblings and be accepted wrongly.
            yield (
                f"--speculative-eagle-topk {topk}: trtllm_mha verifies chains only and would treat a tree's branches as one text; "
                "use --speculative-eagle-topk 1, or --attention-backend triton"
            )
    used = (draft,) if draft else (prefill, decode)
    unknown = [backend for backend in used if backend not in (*NAMES, *own)]
    if views and unknown:
        flag = "--speculative-draft-attention-backend" if draft else "--attention-backend"
        also = ", or run without MTP" if unknown[0] in ATTENTION_BACKENDS else ""
        yield (
            f"{flag} {unknown[0]}: it is not known which of the target's KV state the MTP draft would read there; "
            f"use one of {', '.join(NAMES)}{also}"
        )
    if arguments["kv_cache_dtype"] == "nvfp4" and "trtllm_mha" in (prefill, decode):
        # kv_cache_hook.py:183 refuses FROZEN_KV_MTP, but runs while the algorithm is still called NEXTN, which it lets pass.
        yield (
            "--kv-cache-dtype nvfp4: the MTP draft does not read the layout that trtllm_mha gives it; "
            "use --kv-cache-dtype auto or fp8_e4m3, or run without MTP"
        )


def _length_problems(arguments: Mapping[str, Any]) -> Iterator[str]:
    steps, topk, tokens = values = [arguments[name] for name in LENGTHS]
    lengths = (0, 1, 1) if arguments["speculative_adaptive"] else (1, 1, 2)  # adaptive drafts may start with no steps
    for name, value, least in zip(LENGTHS, values, lengths, strict=True):
        flag = f"--{name.replace('_', '-')}"
        if value is None:
            yield (
                f"{flag} is not set, and SGLang has no default for MTP; give it, or give none of "
                f"{', '.join('--' + other.replace('_', '-') for other in LENGTHS)} and leave SGLANG_GEMMA4_MTP_DEFAULTS on"
            )
        if value < least:
            yield f"{flag} {value} is below {least}; give at least {least}, or run without MTP"
    if tokens > (most := tree_size(steps, topk)):
        yield (
            f"--speculative-num-draft-tokens {tokens}: {steps} steps of topk {topk} make a tree of {most} tokens at most; "
            f"use --speculative-num-draft-tokens {most}, or more --speculative-num-steps"
        )
