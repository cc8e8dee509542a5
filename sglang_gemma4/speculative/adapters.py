"""Adapters."""

from collections.abc import Callable
from typing import Any


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
