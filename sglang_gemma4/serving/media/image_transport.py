"""On one GPU, image features go to the scheduler by cuda_ipc, unless --mm-feature-transport says otherwise."""

import os
import platform
from collections.abc import Mapping
from typing import Any

from sglang_gemma4.patching import decline, tell

ARCHITECTURES = ("Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration")


NAME, ON_CARD = "image_transport", "cuda_ipc"


def _reason_against_handles(environ: Mapping[str, str], kernel: str) -> str | None:
    """Why a process may be unable to open another's GPU memory, or None. SGLang would only find out at the first image."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if "expandable_segments:true" in environ.get(name, "").replace(" ", "").lower():
            return f"{name}={environ[name]}; a container may forbid other processes to open expandable segments"
    return "CUDA on WSL hands no memory to another process" if "microsoft" in kernel.lower() else None


def _reason_against_size(device: str) -> str | None:
    """Why this GPU's memory is better left to KV, or None."""
    from sglang.srt.arg_groups import memory_hook

    from sglang_gemma4.memory import reserve

    mib = memory_hook.get_device_memory_capacity(device)
    if mib is None or mib * reserve.MIB >= reserve.FEATURES_ON_CARD:
        return None
    return f"the GPU has {mib / 1024:.0f} GiB, and they would take 2.4; --mm-feature-transport {ON_CARD} has them stay there"


def stay_on_card(server_args: Any) -> None:
    """Before ``handle_multimodal_feature_transport``: choose cuda_ipc where possible; SGLang's default is the CPU's memory."""
    from sglang.srt.arg_groups.overrides import declare_resolution, model_config_of, resolving_view
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_platform

    given, config = resolving_view(server_args), model_config_of(server_args)
    if given.mm_feature_transport is not None or envs.SGLANG_USE_CUDA_IPC_TRANSPORT.is_set():
        return
    if config.hf_config.architectures[0] not in ARCHITECTURES or not config.is_multimodal:
        return
    if not get_platform().is_cuda or given.language_model_only:  # nothing to speed up
        return
    reason = None
    if given.nnodes != 1:
        reason = f"--nnodes {given.nnodes}; memory of a GPU can be handed over on one machine only"
    elif given.tp_size > 1 or given.dp_size > 1:
        asked = f"--tp-size {given.tp_size} --dp-size {given.dp_size}"
        reason = f"{asked}; other GPUs would have to open the first one's memory, which was not tried"
    elif given.encoder_only or given.disaggregation_mode != "null":
        reason = f"--disaggregation-mode {given.disaggregation_mode}{', --encoder-only' if given.encoder_only else ''}"
    else:
        reason = _reason_against_size(given.device) or _reason_against_handles(os.environ, platform.uname().release)
    if reason is not None:
        decline(NAME, f"image features go through the CPU's memory: {reason}")
        return
    cost = f"which holds {envs.SGLANG_MM_FEATURE_CACHE_MB.get()} MiB for them; cpu holds none"
    tell(NAME, f"image features stay on the GPU (--mm-feature-transport {ON_CARD}, {cost})")
    declare_resolution(server_args, "sglang_gemma4.image_transport", mm_feature_transport=ON_CARD)
