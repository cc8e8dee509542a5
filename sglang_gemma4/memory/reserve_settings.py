"""``reserve`` for SGLang's resolved arguments: --mem-fraction-static, and what is left unused after graph capture."""

from typing import Any

import torch
from sglang.srt.arg_groups import memory_hook
from sglang.srt.arg_groups.overrides import model_config_of, resolving_view
from sglang.srt.model_executor.cuda_graph_config import Backend
from sglang.srt.runtime_context import get_schedule, get_server_args

from sglang_gemma4.memory import reserve
from sglang_gemma4.memory.swa_ratio import CONCURRENT
from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import switches

DRAFT_TOKENS = 4  # where SGLang has not resolved them yet
WORTH_SAYING = 0.5 * reserve.GIB
"""Less than this left unused is not worth another start."""


def reason_against(server_args: Any, typed: float | None) -> str | None:
    """Why --mem-fraction-static is left as it is, or None. ``typed``: what the operator gave."""
    given = resolving_view(server_args)
    if typed is not None:
        return f"--mem-fraction-static {typed:g} was given"
    if given.device != "cuda" or memory_hook.get_device_memory_capacity(given.device) is None:
        return f"the device is {given.device}, not a CUDA GPU"
    if not named_gemma4(model_config_of(server_args).hf_config):
        return "the model is not a Gemma 4"
    if given.enable_unified_memory:
        return "--enable-unified-memory was not looked into"
    if given.pp_size > 1 or given.nnodes > 1 or given.attn_dp_size > 1 or given.enable_dp_attention:
        return "only tensor parallelism on one machine is calculated"
    return None


def steps_of(server_args: Any) -> reserve.Steps:
    """What a server with these arguments runs."""
    given, config = resolving_view(server_args), model_config_of(server_args)
    decode, prefill = given.cuda_graph_config.decode, given.cuda_graph_config.prefill
    draft = bool(given.speculative_algorithm or given.speculative_draft_model_path)
    graphs = list(decode.bs or ()) if decode.backend != Backend.DISABLED else []
    running = given.max_running_requests or (CONCURRENT if draft else None)
    most = min(size for size in (running, max(graphs, default=decode.max_bs)) if size)
    chunk = given.chunked_prefill_size if given.chunked_prefill_size > 0 else given.max_prefill_tokens
    rows = most * (given.speculative_num_draft_tokens or DRAFT_TOKENS) if draft else most
    images = config.is_multimodal and not given.language_model_only and given.disaggregation_mode != "decode"
    sizes = list(prefill.bs or ()) if prefill.backend != Backend.DISABLED else []
    decode_graphs = len([one for one in graphs if one <= most]) or len(graphs)
    joined, ordered = reserve.joined_graphs(sizes, bool(getattr(config.hf_text_config, "enable_moe_block", False)), given.tp_size)
    return reserve.Steps(chunk, rows, decode_graphs, sizes, draft, images, joined=joined, ordered_keys=ordered)


def needed(server_args: Any) -> reserve.Reserve:
    """What such a server needs beside weights and KV."""
    config = model_config_of(server_args)
    vision = getattr(config.hf_config, "vision_config", None)
    return reserve.of(config.hf_text_config, vision, steps_of(server_args), resolving_view(server_args).tp_size)


def chosen(server_args: Any, asked: float | str) -> tuple[float, str]:
    """--mem-fraction-static for ``asked`` GiB to be kept, or for as many as are needed, and the line for the log.

    Raises:
        ValueError: the GPU does not have that much.
    """
    view = resolving_view(server_args)
    card = memory_hook.get_device_memory_capacity(view.device) * reserve.MIB
    stock, need = view.mem_fraction_static, needed(server_args)
    kept = need.total + reserve.MARGIN if isinstance(asked, str) else asked * reserve.GIB
    fraction = reserve.fraction(kept, card)
    calculated = f"kept beside weights and KV are {need}, and {reserve.MARGIN / reserve.GIB:.1f} more"
    what = calculated if isinstance(asked, str) else f"{asked:g} GiB are kept beside weights and KV, as asked"
    said = f"--mem-fraction-static {fraction:g} ({switches.RESERVE_GIB}={asked}): {what}; SGLang's rule keeps {(1 - stock):.1%} of the GPU"
    if not isinstance(asked, str) and kept < need.total:
        said += f"; calculated are {need}: less may run out of memory under load"
    return fraction, said


def left(scheduler: Any) -> tuple[str, bool]:
    """A line about the memory that is free once all graphs are captured, and whether it is enough.

    The line is empty if the free memory is as it should be.
    """
    runner, schedule, given = scheduler.tp_worker.model_runner, get_schedule(), get_server_args()
    if runner.device != "cuda" or not named_gemma4(runner.model_config.hf_config):
        return "", True
    device = runner.gpu_id
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # cached by the allocator, which can reuse it
    free, need = torch.cuda.mem_get_info(device)[0] + unused, needed(given)
    return line(free, need, runner.pre_model_load_memory * reserve.GIB, schedule.mem_fraction_static, schedule.max_total_tokens)


def line(free: float, need: reserve.Reserve, before: float, fraction: float, limited: int | None) -> tuple[str, bool]:
    """:func:`left` from bytes: ``free`` now and ``before`` the weights, with the fraction in force.

    Args:
        limited: --max-total-tokens, which bounds the pools whatever the fraction.
    """
    wanted = need.working + need.safety + reserve.MARGIN
    uses = f"{need.working / reserve.GIB:.1f} GiB for {need.largest} and {need.safety / reserve.GIB:.1f} for safety are needed"
    if free < need.working + need.safety / 2:
        lower = max(0.0, int(1000 * (fraction - (need.working + need.safety - free) / before)) / 1000)
        said = f"only {free / reserve.GIB:.1f} GiB are free after graphs, and {uses}"
        return f"{said}; use --mem-fraction-static {lower:g} or a smaller --chunked-prefill-size", False
    spare = free - wanted
    if spare < WORTH_SAYING:
        return "", True
    said = f"{spare / reserve.GIB:.1f} GiB left unused after graphs: {free / reserve.GIB:.1f} are free, and {uses}"
    said += f", and {reserve.MARGIN / reserve.GIB:.1f} more are left"
    if limited is not None:
        return f"{said}; --max-total-tokens {limited} bounds the KV pools", True
    higher = int(1000 * (fraction + spare / before)) / 1000
    return f"{said}; --mem-fraction-static {higher:g} would give them to KV", True
