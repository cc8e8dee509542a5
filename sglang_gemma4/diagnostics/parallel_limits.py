"""Checks how a Gemma 4 is split over ranks: pipeline stages, experts, attention groups and contexts. Reads only the config."""

import os
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any

from sglang_gemma4.patching import switches

FIXES = "SGLANG_GEMMA4_MODEL_FIXES"
PARTITION = "SGLANG_PP_LAYER_PARTITION"
FIELDS = (
    "tp_size",
    "pp_size",
    "ep_size",
    "dp_size",
    "attn_dp_size",
    "attn_cp_size",
    "dcp_size",
    "moe_dp_size",
    "dwdp_size",
    "moe_a2a_backend",
    "moe_dense_tp_size",
    "enable_dp_attention",
    "disable_cuda_graph",
    "speculative_algorithm",
    "speculative_draft_model_path",
)
"""The fields of ``ServerArgs`` that :func:`problems` reads."""

CONTEXT_FLAGS = ("attn_cp_size", "dcp_size", "moe_dp_size", "dwdp_size")


def problems(config: Mapping[str, Any], arguments: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """What cannot be served with these sizes, one line each.

    Args:
        config: a Gemma 4 target's config.json.
        arguments: :data:`FIELDS`, as typed.
    """
    text = config.get("text_config") or config
    yield from _pipeline_problems(text, arguments, environ)
    yield from _expert_problems(text, arguments)
    yield from _attention_problems(arguments)


def _size(arguments: Mapping[str, Any], name: str) -> int:
    return max(1, int(arguments.get(name) or 1))


def _speculates(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments.get("speculative_algorithm") or arguments.get("speculative_draft_model_path"))


def stages_of(layers: int, stages: int, given: str | None = None) -> list[int]:
    """Layers per pipeline stage: as ``given`` (``"13,22"``), else as SGLang divides them, with the larger stages last.

    Raises:
        ValueError: ``given`` does not name as many stages, or not as many layers.
    """
    if given is None:
        return [(layers + stage) // stages for stage in range(stages)]
    sizes = [int(size) for size in given.split(",")]
    if len(sizes) != stages or sum(sizes) != layers or min(sizes) < 1:
        raise ValueError(given)
    return sizes


def owners(text: Mapping[str, Any]) -> list[int]:
    """The layers whose KV other layers read, ascending; empty where no layer shares KV."""
    shared = text.get("num_kv_shared_layers") or 0
    kinds = list(text.get("layer_types") or ())
    before = kinds[: len(kinds) - shared] if shared else []
    return sorted(len(before) - 1 - before[::-1].index(kind) for kind in set(kinds[len(before) :]) if kind in before) if before else []


def _pipeline_problems(text: Mapping[str, Any], arguments: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[str]:
    stages, layers = _size(arguments, "pp_size"), int(text.get("num_hidden_layers") or 0)
    if stages == 1 or not layers:
        return
    if stages > layers:
        yield f"--pp-size {stages}: the model has {layers} layers, and a stage needs one; use --pp-size {layers} or less"
    if _speculates(arguments):
        yield (
            f"--pp-size {stages}: an MTP draft reads KV of all stages and SGLang speculates behind one only; "
            "use --tp-size, or leave --speculative-algorithm and --speculative-draft-model-path out"
        )
    given = environ.get(PARTITION)
    try:
        sizes = stages_of(layers, stages, given)
    except ValueError:
        yield (
            f"{PARTITION}={given} is not {stages} numbers whose sum is the model's {layers} layers; "
            f"leave it unset, or write {_even(layers, stages)}"
        )
        return
    yield from _shared_kv_problem(text, stages, sizes)
    if text.get("hidden_size_per_layer_input") and not (arguments.get("disable_cuda_graph") or switches.is_on(switches.CPU_ENGINE)):
        # gemma4_causal.py:870 refuses it too, in every scheduler and after the processes have started.
        yield (
            f"--pp-size {stages}: SGLang's CUDA graphs hand no per-layer embeddings to the next stage; "
            "add --disable-cuda-graph, or use --tp-size"
        )


def _even(layers: int, stages: int) -> str:
    return ",".join(map(str, stages_of(layers, stages)))


def _shared_kv_problem(text: Mapping[str, Any], stages: int, sizes: list[int]) -> Iterator[str]:
    read, layers = owners(text), sum(sizes)
    cuts = list(accumulate(sizes))[:-1]
    if not read or all(cut <= read[0] for cut in cuts):
        return
    shared = layers - int(text["num_kv_shared_layers"])
    if stages - 1 > read[0]:
        remedy = f"use --pp-size {read[0] + 1} or less, or --tp-size"
    else:
        first = _even(read[0], stages - 1)
        remedy = f"set {PARTITION}={first},{layers - read[0]}, or use --tp-size"
    at = ", ".join(f"{start} to {end - 1}" for start, end in pairwise([0, *cuts, layers]))
    yield (
        f"--pp-size {stages}: layers {shared} to {layers - 1} read the KV of layers {' and '.join(map(str, read))}, "
        f"which must be on their stage (now layers {at}); {remedy}"
    )


def _expert_problems(text: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[str]:
    ranks, experts = _size(arguments, "ep_size"), int(text.get("num_experts") or 0) if text.get("enable_moe_block", True) else 0
    if ranks > 1 and experts % ranks:
        yield f"--ep-size {ranks}: {experts} experts do not divide by it; use a divisor of {experts}, for example 2"
    elif ranks > 1 and _size(arguments, "tp_size") % ranks:
        yield f"--ep-size {ranks}: experts are split over ranks of --tp-size; give a --tp-size that it divides, for example {ranks}"
    if arguments.get("moe_dense_tp_size") == 1 and _size(arguments, "tp_size") > 1 and not experts:
        # layer_boundary/factories.py:124 then gives each rank rows of its own, but Gemma3MLP is split over all ranks.
        yield "--moe-dense-tp-size 1: a dense Gemma 4's FFN is split over all ranks; leave the flag out"
    backend = arguments.get("moe_a2a_backend")
    if backend not in (None, "none"):  # moe_runner/deep_gemm.py:352 asserts silu; the others were not tried
        yield f"--moe-a2a-backend {backend}: its expert kernels compute silu, Gemma 4's experts gelu; leave the flag out (--ep-size alone)"


def _attention_problems(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name in CONTEXT_FLAGS:
        if (size := _size(arguments, name)) > 1:
            flag = f"--{name.replace('_', '-')} {size}"
            yield f"{flag}: no Gemma 4 layer is split that way; leave the flag out, or use --tp-size"
    attention = _size(arguments, "attn_dp_size")
    if arguments.get("enable_dp_attention"):
        attention = max(attention, _size(arguments, "dp_size"))
    if attention == 1:
        return
    flag = f"--attn-dp-size {attention}"
    if not switches.part_is_on("attention_groups", FIXES):
        yield f"{flag}: SGLang's Gemma 4 has no data-parallel attention of its own; leave {FIXES} on, or use --dp-size"
    if _speculates(arguments):
        yield f"{flag}: the MTP draft would wait for ranks without requests, which draft nothing; use --dp-size, or run without MTP"
