"""LoRA and MTP go together: the target verifies with adapters, the draft has none."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses


def allow(original: Callable[[Any], None], server_args: Any) -> None:
    """Around ``check_lora_speculative_compatibility``."""
    from sglang.srt.arg_groups.overrides import resolving_view

    config = resolving_view(server_args)
    if config.speculative_algorithm != "FROZEN_KV_MTP":
        original(server_args)
        return
    from sglang.srt.environ import envs

    if config.speculative_adaptive:
        raise ValueError(
            "--speculative-adaptive with LoRA: the adapters' metadata inside captured graphs is made for one draft length; leave one out"
        )
    if envs.SGLANG_ENABLE_OVERLAP_PLAN_STREAM.get():
        raise ValueError(
            "SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1 with LoRA: an adapter could be fetched while the step before reads it; unset it"
        )
    runners = (config.moe_runner_backend, config.speculative_moe_runner_backend)
    if "experimental_sgl_trtllm" in runners:
        raise ValueError("--moe-runner-backend experimental_sgl_trtllm with LoRA and a draft: the draft's experts would look for adapters")


PATCH = Patch(
    switch="SGLANG_GEMMA4_LORA",
    why="Stock refuses LoRA with Gemma 4's MTP, though verify steps have one width for all requests, which is all that its LoRA asks for.",
    evidence="srt/arg_groups/lora_hook.py:246-264 · srt/lora/utils.py:489 (verify) · srt/model_executor/model_runner.py:838 (no draft)",
    remove_when="SGLang lists FROZEN_KV_MTP among the algorithms that LoRA goes with.",
    uses=(uses.lora, uses.mtp),
    hooks=(Hook("sglang.srt.arg_groups.lora_hook.check_lora_speculative_compatibility", "around", allow, "7dd959b96894"),),
)
