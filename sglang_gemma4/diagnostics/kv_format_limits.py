"""Checks SGLang's resolved arguments for what a KV cache with scales per token and head cannot run with, before weights are loaded."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sglang_gemma4.diagnostics.preflight import refuse
from sglang_gemma4.kernels.kv_cache.formats import FORMATS, KvFormat, named

FLAGS = {
    "enable_hierarchical_cache": "the tier on the host copies elements without their scales",
    "enable_unified_memory": "both pools then share slots of one size",
    "enable_page_major_kv_layout": "scales lie by slot, not by page",
    "enable_unified_cache_external_linker": "the tier outside copies elements without their scales",
    "enable_lmcache": "LMCache copies elements without their scales",
    "enable_flexkv": "FlexKV copies elements without their scales",
    "enable_hisparse": "its tier on the host copies elements without their scales",
    "enable_deterministic_inference": "its attention kernel reads unquantised keys",
    "enable_pdmux": "its streams share one attention backend's metadata",
    "disaggregation_decode_enable_offload_kvcache": "the tier on the host copies elements without their scales",
    "disable_hybrid_swa_memory": "sliding and full layers have heads of two sizes",
}
"""Flags of ``launch_server`` and why each is refused."""
FIELDS = (
    *("kv_cache_dtype", "disaggregation_mode", "disaggregation_transfer_backend", "disaggregation_decode_retraction_backup"),
    *("dcp_size", "attn_cp_size", "speculative_draft_kv_cache_dtype", "speculative_draft_attention_backend", *FLAGS),
    "speculative_algorithm",
)
"""The arguments that :func:`check` reads, besides ``prefill_backend`` and ``decode_backend``."""
TRANSFERS = ("nixl", "mooncake")
"""Transfer backends between a prefill and a decode server that were tried with scales."""
OWN_KEYS = ("EAGLE", "EAGLE3", "DFLASH", "DSPARK", "STANDALONE", "UNO")
"""Algorithms whose drafts have a KV cache of their own; SGLang's attention reads and writes that cache without scales."""
CPU_BACKENDS = ("intel_amx", "torch_native")


def check(
    arguments: Mapping[str, Any],
    *,
    gemma4: bool,
    cpu_engine: bool,
    capability: tuple[int, int] | None,
    hnd: bool = False,
    unmasked: bool = False,
) -> None:
    """Check SGLang's resolved arguments if ``kv_cache_dtype`` is one of ``kernels.kv_cache.formats``.

    Args:
        arguments: :data:`FIELDS`, and the attention backends of prefill and decode under ``prefill_backend`` and ``decode_backend``.
        gemma4: the model is a Gemma 4.
        cpu_engine: :data:`CPU_BACKENDS` are this package's.
        capability: the GPU's compute capability, None without a CUDA GPU.
        hnd: the value of SGLANG_USE_HND_KVCACHE.
        unmasked: image tokens of this model attend in both directions, and the patch image_masks is off.

    Raises:
        PreflightError: the server could not start, or would compute wrong values.
    """
    kind = named(arguments["kv_cache_dtype"])
    if kind is None:
        return
    if not gemma4:
        refuse(iter([f"--kv-cache-dtype {kind.name} is this package's for Gemma 4; use auto for other models"]))
    refuse(_problems(kind, arguments, CPU_BACKENDS if cpu_engine else ()))
    refuse(_surroundings(kind, capability, hnd, unmasked))


def _problems(kind: KvFormat, arguments: Mapping[str, Any], own: Collection[str]) -> Iterator[str]:
    flag = f"--kv-cache-dtype {kind.name}"
    backends = [arguments["prefill_backend"], arguments["decode_backend"], arguments["speculative_draft_attention_backend"]]
    for backend in dict.fromkeys(each for each in backends if each):
        if backend != "triton" and backend not in own:
            yield f"{flag}: attention backend {backend} reads no such cache; use --attention-backend triton"
    if arguments["disaggregation_mode"] != "null" and arguments["disaggregation_transfer_backend"] not in TRANSFERS:
        yield (
            f"{flag}: --disaggregation-transfer-backend {arguments['disaggregation_transfer_backend']} was not tried with scales; "
            f"use {' or '.join(TRANSFERS)}"
        )
    if arguments["disaggregation_decode_retraction_backup"] == "host_pool":
        yield (
            f"{flag}: --disaggregation-decode-retraction-backup host_pool copies elements without their scales; use cpu_tensor, or leave "
            "--disaggregation-decode-host-receive-threshold at 1, which asks for it"
        )
    for name, what in (("dcp_size", "--decode-context-parallel-size"), ("attn_cp_size", "--attn-cp-size")):
        if (arguments.get(name) or 1) > 1:
            yield f"{flag}: {what} {arguments[name]} splits the keys of a request over ranks; use 1"
    if (algorithm := arguments.get("speculative_algorithm")) in OWN_KEYS:
        yield (
            f"{flag}: --speculative-algorithm {algorithm} has a draft with keys of its own, which are read and written without scales; "
            "use --kv-cache-dtype auto, or MTP's assistant"
        )
    draft = arguments["speculative_draft_kv_cache_dtype"]
    if draft not in (None, kind.name):
        yield f"{flag}: --speculative-draft-kv-cache-dtype {draft}: MTP's draft reads the target's cache; leave that flag out"
    for name, reason in FLAGS.items():
        if arguments.get(name):
            yield f"{flag} with --{name.replace('_', '-')}: {reason}; leave one of them out"


def _surroundings(kind: KvFormat, capability: tuple[int, int] | None, hnd: bool, unmasked: bool) -> Iterator[str]:
    flag = f"--kv-cache-dtype {kind.name}"
    if capability is not None and capability < kind.least_capability:
        need = ".".join(map(str, kind.least_capability))
        other = next((name for name, each in FORMATS.items() if capability >= each.least_capability), "auto")
        yield (
            f"{flag}: the GPU's compute capability is {capability[0]}.{capability[1]}, these elements need {need}; "
            f"use --kv-cache-dtype {other}"
        )
    if hnd:
        yield f"{flag}: SGLANG_USE_HND_KVCACHE lays the cache out by head; unset it"
    if unmasked:
        yield f"{flag}: images of this model attend both ways, for which the patch image_masks is needed; switch it on"
