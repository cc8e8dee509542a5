"""Checks flag values as typed that no Gemma 4 server can run with; SGLang loads the weights first, then ends or answers nothing.

Neither torch nor sglang is imported.
"""

import importlib.util
import os
from collections.abc import Iterator, Mapping
from typing import Any

from sglang_gemma4.diagnostics.text_geometry import text_geometry

POSITIVE = {
    "context_length": "leave the flag out for the model's own",
    "max_running_requests": "leave the flag out for as many as the pools hold",
    "max_queued_requests": "leave the flag out for a queue without a limit",
    "max_prefill_tokens": "leave the flag out",
    "prefill_max_requests": "leave the flag out for as many as fit",
    "max_total_tokens": "leave the flag out to size the pools from memory",
    "page_size": "leave the flag out for pages of one token",
    "decode_log_interval": "leave the flag out, or give a large one for a quiet log",
    "tp_size": "leave the flag out for one rank",
    "pp_size": "leave the flag out for one stage",
    "dp_size": "leave the flag out for one replica",
    "ep_size": "leave the flag out",
    "nnodes": "leave the flag out for one machine",
    "max_lora_rank": "leave the flag out where adapters are given",
}
"""Flags whose value must be at least 1, and what to do instead of giving a smaller one."""
CHUNK = 2048
"""The smallest chunk that SGLang chooses by itself; its other choices are this times a power of two (memory_hook.py:93)."""
PACKAGES = {"enable_lmcache": "lmcache", "enable_flexkv": "flexkv"}
"""Flags that need a package which SGLang does not install."""
DUMPED = "TENSOR_DUMP_TOP_LEVEL_MODULE_NAME"
"""SGLang's environment variable for the module whose layers are dumped (tensor_dump_forward_hook.py:156)."""
IMPLEMENTATIONS = ("auto", "sglang")
FIELDS = (
    *POSITIVE,
    "mem_fraction_static",
    "chunked_prefill_size",
    "swa_full_tokens_ratio",
    "disable_hybrid_swa_memory",
    "disaggregation_mode",
    "enable_lora",
    "lora_paths",
    "lora_backend",
    "expert_distribution_recorder_mode",
    "enable_return_routed_experts",
    "debug_tensor_dump_output_folder",
    "moe_runner_backend",
    "enable_torch_compile",
    "enable_unified_memory",
    "attn_dp_size",
    "enable_dp_attention",
    "startup_weight_load_mode",
    *PACKAGES,
    "enable_unified_cache_external_linker",
    "enable_hierarchical_cache",
    "hicache_ratio",
    "hicache_size",
    "model_impl",
    "schedule_policy",
    "disable_radix_cache",
    "enable_prefill_delayer",
    "disable_overlap_schedule",
    "offload_group_size",
)
"""The arguments that :func:`problems` reads."""


def problems(config: dict[str, Any], arguments: Mapping[str, Any], cpu_engine: bool = False) -> Iterator[str]:
    """What cannot work of a model with this ``config``, one line each, on the CPU reference engine or a GPU."""
    yield from _numbers(arguments)
    yield from _pages(arguments)
    yield from _pools(config, arguments)
    yield from _choices(arguments)
    if arguments.get("enable_hierarchical_cache"):
        yield from _host_memory(arguments)
    yield from _other_caches(arguments)
    yield from _adapters_of_replicas(arguments)
    yield from _of_the_classes(config, arguments)
    if cpu_engine:
        yield from _cpu_engine(config, arguments)


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return f"--{name.replace('_', '-')}"


def number(value: Any) -> float | None:
    """A flag's value as a number, from text too; None if it is not given or not a number, which SGLang's parser refuses."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def _of_the_classes(config: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[str]:
    """What SGLang needs from a model's class or config that Gemma 4's classes and configs lack."""
    mode = arguments.get("expert_distribution_recorder_mode")
    if mode is not None:
        yield f"--expert-distribution-recorder-mode {mode}: SGLang's Gemma 4 does not say where its experts lie; leave the flag out"
    if arguments.get("enable_return_routed_experts"):
        yield "--enable-return-routed-experts reads num_experts_per_tok, which Gemma 4's config calls top_k_experts; leave the flag out"
    folder = arguments.get("debug_tensor_dump_output_folder")
    if folder and "Gemma4ForCausalLM" not in (config.get("architectures") or []) and DUMPED not in os.environ:
        yield f"--debug-tensor-dump-output-folder {folder}: multimodal Gemma 4 has no module named model; set {DUMPED}=language_model"


def _cpu_engine(config: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[str]:
    """Flags that need a GPU."""
    runner = arguments.get("moe_runner_backend")
    if (config.get("text_config") or config).get("enable_moe_block") and runner not in (None, "auto", "triton"):
        # flashinfer_cutlass would swap gate and up as it loads them, and this engine's experts would read them as they were.
        yield f"--moe-runner-backend {runner} has kernels for GPUs; leave the flag out on the CPU reference engine"
    page = number(arguments.get("page_size"))
    if arguments.get("enable_unified_memory") and page is not None and page > 1 and os.environ.get("TRITON_INTERPRET") != "1":
        yield f"--enable-unified-memory with --page-size {page:g} allocates by a kernel for GPUs; use --page-size 1 here"
    if arguments.get("enable_torch_compile"):
        yield "--enable-torch-compile: the CPU reference engine runs eagerly; leave the flag out"
    adapted, backend = arguments.get("enable_lora") or arguments.get("lora_paths"), arguments.get("lora_backend")
    if adapted and backend not in (None, "torch_native"):
        yield f"--lora-backend {backend} has kernels for GPUs; the CPU reference engine needs --lora-backend torch_native"
    if arguments.get("startup_weight_load_mode") == "overlap":
        yield "--startup-weight-load-mode overlap is for GPUs; leave the flag out"


def _numbers(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, remedy in POSITIVE.items():
        value = number(arguments.get(name))
        if value is not None and value < 1:
            yield f"{flag(name)} {arguments[name]} is below 1; {remedy}"
    share = number(arguments.get("mem_fraction_static"))
    if share is not None and not 0 < share < 1:
        yield f"--mem-fraction-static {share:g} is not above 0 and below 1 (weights and KV pools' share of memory); leave the flag out"


def _pages(arguments: Mapping[str, Any]) -> Iterator[str]:
    page, chunk = number(arguments.get("page_size")), number(arguments.get("chunked_prefill_size"))
    if page is None or arguments.get("disaggregation_mode") == "decode":
        return
    size = CHUNK if chunk is None else chunk
    if size > 0 and size % page:
        given = f"--chunked-prefill-size {chunk:g}" if chunk is not None else f"chunks of {CHUNK} tokens, which SGLang may take by itself"
        multiple = f"{page * max(1, size // page):g}"
        yield f"--page-size {page:g} does not divide {given}; use --chunked-prefill-size {multiple} or another multiple of it"


def _pools(config: dict[str, Any], arguments: Mapping[str, Any]) -> Iterator[str]:
    ratio, one_pool = number(arguments.get("swa_full_tokens_ratio")), arguments.get("disable_hybrid_swa_memory")
    if ratio is not None and not 0 < ratio <= 1:
        yield (
            f"--swa-full-tokens-ratio {ratio} is not above 0 and at most 1 (sliding-window tokens per full token); "
            "leave the flag out, or give for example 0.15 for a MoE and 0.8 for a dense model"
        )
    if ratio is not None and one_pool:
        yield f"--swa-full-tokens-ratio {ratio} divides the pools that --disable-hybrid-swa-memory makes one; leave one of them out"
    context, tokens = number(arguments.get("context_length")), number(arguments.get("max_total_tokens"))
    shapes = [f"{each.kv_heads} of {each.head_dim}" for each in text_geometry(config).layers.values()]
    if one_pool and len(set(shapes)) > 1:
        # One pool has one shape (memory_pool.py): the first layer of the other type cannot be written, and every
        # request fails with 500.
        both = " and ".join(shapes)
        yield f"--disable-hybrid-swa-memory: one pool cannot hold the KV heads of both kinds of layers, {both}; leave the flag out"
    # Before weights are loaded only this part of pool_checks.check is possible; one pool may be spread over ranks.
    if context is not None and tokens is not None and not one_pool and context > tokens:
        yield (
            f"--context-length {context:.0f}: one request may have {context:.0f} tokens and --max-total-tokens {tokens:.0f} are all there "
            f"are; raise that, or lower --context-length to {tokens:.0f} or less"
        )


def _choices(arguments: Mapping[str, Any]) -> Iterator[str]:
    given, group = arguments.get("model_impl"), number(arguments.get("offload_group_size"))
    if given is not None and str(given).lower() not in IMPLEMENTATIONS:
        # transformers' backend asks for fields of other MoE configs, and has neither the two pools nor the draft.
        yield f"--model-impl {given} does not serve Gemma 4 in SGLang; use --model-impl auto"
    if group is not None and group > 0:
        # utils/offloader.py needs to be told which part of a layer to move, and no Gemma 4 class does.
        yield f"--offload-group-size {group:g} offloads layers of other models; use --cpu-offload-gb, or leave the flag out"
    if arguments.get("enable_prefill_delayer") and arguments.get("disable_overlap_schedule"):
        yield "--enable-prefill-delayer needs the overlapped loop; leave it or --disable-overlap-schedule out"
    policy = arguments.get("schedule_policy")
    if policy == "priority":  # a choice of the command line, but not a policy of schedule_policy.py
        yield "--schedule-policy priority is not a policy of SGLang's scheduler; use --enable-priority-scheduling with fcfs or lof"
    if policy == "shortest-prefill-first" and arguments.get("disable_radix_cache"):
        yield f"--schedule-policy {policy} needs the prefix cache; leave --disable-radix-cache out, or use --schedule-policy fcfs"


def _host_memory(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Sizes of the host memory for KV, which SGLang allocates after the weights."""
    ratio, size = number(arguments.get("hicache_ratio")), number(arguments.get("hicache_size"))
    if ratio is not None and ratio <= 0 and not (size or 0) > 0:  # a size takes precedence over the ratio
        yield f"--hicache-ratio {ratio:g} is not above 0 (host tokens per token of the device); leave the flag out for 2"
    if size is not None and size < 0:
        yield f"--hicache-size {size:g} is below 0 GB; leave the flag out to size host memory by --hicache-ratio"
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    if size is not None and size > there:
        yield f"--hicache-size {size:g} GB is more than this machine's memory of {there:.0f} GB; give less, for each rank of its own"


def _adapters_of_replicas(arguments: Mapping[str, Any]) -> Iterator[str]:
    """LoRA with separate attention for each data-parallel replica (lora/lora_manager.py:140)."""
    name = "dp_size" if arguments.get("enable_dp_attention") else "attn_dp_size"
    replicas, backend = number(arguments.get(name)) or 1, arguments.get("lora_backend") or "csgmv"
    adapted = arguments.get("enable_lora") or arguments.get("lora_paths")
    if adapted and replicas > 1 and not str(backend).startswith("triton"):
        yield f"--lora-backend {backend} does not go with {flag(name)} {replicas:g}; use --lora-backend triton, or leave one of them out"


def _other_caches(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Caches that SGLang looks for only after loading the weights."""
    for name, package in PACKAGES.items():
        if arguments.get(name) and importlib.util.find_spec(package) is None:
            yield f"{flag(name)} needs the package {package}, which is not installed; install it, or leave the flag out"
    if arguments.get("enable_unified_cache_external_linker"):
        # SGLang's pool strategies have none for a full and a sliding pool (_SwaStrategy).
        yield "--enable-unified-cache-external-linker cannot link the two pools of Gemma 4; use --enable-hierarchical-cache"
