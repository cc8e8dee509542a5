"""Prepares the layers of a built model, patch by patch.

``kv_write`` saves one launch in each of 26B-A4B's 30 layers: ``store_kvcache_kernel`` took 31.8 µs of a verify step at
batch 1 (runs/2026-11-22-26b-kernels-steps). What it saves in a server is not measured yet.

SGLang has a launch like ``kv_write``'s (models/utils.py:306, kernels/jit/csrc/elementwise/rope.cuh) and keeps it off
for Gemma 4, after an "accuracy regression in launch_server path". It does not name the cause, and reading the code
does not settle it. Ours differs from that launch in three ways:

- SGLang's takes ``out_cache_loc`` for every layer. In a sliding layer's buffer these are other tokens' slots (it was
  meant for full layers only).
- SGLang's writes padding tokens into slot 0, which ``store_kvcache_kernel`` skips.
- SGLang's does not check whether a prefill graph is being captured. On replay such a graph's attention gets another
  batch, with other rows.
"""

import pkgutil
from typing import Any

from sglang_gemma4.patching import decline, is_on, switches, takes


def prepare(_result: None, model: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4TextModel.__init__``: prepare a built model, whose weights are not loaded yet, step by step."""
    if is_on("layer_tail"):
        chain_layers(model)
    if is_on("dependent_launch"):
        launch_early()
    if is_on("register_products"):
        multiply_in_registers(model)
    if is_on("dense_copies"):
        make_copies(model)  # after register_products, which decides whether quantised weights are multiplied as they are
    if is_on("few_row_linear"):
        replace_products(model)
    if is_on("router_choice"):
        choose_in_the_product(model)  # after few_row_linear, whose kernel for few rows it looks up and keeps
    if is_on("dense_beside_experts"):
        fork_layers(model)  # after everything that replaces a layer's parts: it takes them as they are then
    if is_on("kv_write"):
        write_early()
    if is_on("fresh_kv"):
        hand_over(model)


def prepare_assistant(_result: None, model: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4AssistantForCausalLM.__init__``, whose text model is not of the target's class."""
    if is_on("dependent_launch"):
        launch_early()
    if is_on("few_row_linear"):
        replace_products(model)


NORMS = "_sglang_gemma4_after_attention"


def prepare_layer(_result: None, layer: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``Gemma4DecoderLayer.__init__``: attach the layer's ``AfterAttention`` to the norm before the FFN."""
    from sglang_gemma4.models.layers.decoder_layer import AfterAttention

    setattr(layer.pre_feedforward_layernorm, NORMS, AfterAttention.of(layer))


def chain_layers(model: Any) -> None:
    """After ``Gemma4TextModel.__init__``: link each layer to the next one (patch ``layer_tail``)."""
    from sglang_gemma4.models.layers.decoder_layer import chain

    chain(model)


def launch_early() -> None:
    """After a target's or an assistant's ``__init__``: enable or disable dependent launches for the process."""
    from sglang_gemma4.kernels import dependent_launch
    from sglang_gemma4.kernels.card import this_device

    problem = dependent_launch.reason_against(this_device())
    if problem is not None:
        decline("dependent_launch", problem)
    dependent_launch.want(problem is None)


def multiply_in_registers(model: Any) -> None:
    """After ``Gemma4TextModel.__init__``: enable or disable ``register_products`` for the process, if quantised."""
    if model.quant_config is None:
        return
    from sglang_gemma4.kernels import register_products
    from sglang_gemma4.kernels.card import this_device

    problem = register_products.reason_against(this_device())
    if problem is not None:
        decline("register_products", problem)
    register_products.want(problem is None)


def make_copies(model: Any) -> None:
    """After ``Gemma4TextModel.__init__``, before its weights are loaded: ask for bfloat16 copies of dense weights.

    Dense models get none: of these only the memory that copies take is known.
    """
    if model.quant_config is None or not model.config.enable_moe_block:
        return
    from sglang.srt.arg_groups.model_override_base import resolved_view
    from sglang.srt.runtime_context import get_server_args

    from sglang_gemma4.models.layers import four_bit_layers

    given = resolved_view(get_server_args())
    four_bit_layers.want_copies(model, str(given.load_format), float(given.mem_fraction_static or 1.0))


def replace_products(model: Any) -> None:
    """After a target's or an assistant's ``__init__``: install our linear layers for few rows."""
    import torch
    from triton import knobs

    if not torch.cuda.is_available() and not knobs.runtime.interpret:
        decline("few_row_linear", "there is no CUDA GPU")
        return
    from sglang.srt.runtime_context import get_exec

    if get_exec().deterministic.enable_deterministic_inference:  # the mode itself begins after the model is built
        decline("few_row_linear", "--enable-deterministic-inference: a row's GEMM must not depend on how many rows there are")
        return
    from sglang_gemma4.models.layers.few_row_linear import install
    from sglang_gemma4.models.schedule import dense_beside_experts
    from sglang_gemma4.patching import switches

    overlap = (
        switches.part_is_on("dense_beside_experts", "SGLANG_GEMMA4_DENSE_OVERLAP")
        and dense_beside_experts.reason_against_this_server() is None
    )
    for kept in install(model, overlap):
        takes("few_row_linear", f"SGLang's GEMM for {kept}")


def choose_in_the_product(model: Any) -> None:
    """After ``Gemma4TextModel.__init__`` and ``few_row_linear``: choose experts in the launch of the router's GEMM."""
    from sglang_gemma4.models.layers.router_choice import install

    problem = install(model)
    if problem is not None:
        decline("router_choice", problem)


def fork_layers(model: Any) -> None:
    """After ``Gemma4TextModel.__init__``: run a MoE layer's dense FFN in parallel with its experts."""
    if not getattr(model.config, "enable_moe_block", False):
        return
    from sglang_gemma4.models.schedule.dense_beside_experts import install, reason_against_this_server

    problem = reason_against_this_server()
    if problem is not None:
        decline("dense_beside_experts", problem)
    else:
        install(model)


MEMORY_POOL = "sglang.srt.mem_cache.memory_pool"

WRITES = {
    "sglang.srt.layers.attention.triton_backend.TritonAttnBackend._set_kv_buffer": "5b11c98941c9",
    "sglang.srt.mem_cache.swa_memory_pool.SWAKVPool.set_kv_buffer": "fa5871e2fb42",
    "sglang.srt.mem_cache.unified_memory_pool.UnifiedSWAKVPool.set_kv_buffer": "fc13e6f399ad",
    f"{MEMORY_POOL}.MHATokenToKVPool.set_kv_buffer": "f0e58db1c519",
    f"{MEMORY_POOL}.MHATokenToKVPool._store_kv_layer": "d3f3939d6ff7",
    f"{MEMORY_POOL}.KVWriteLoc": "e8a5d95ba308",
}
"""SGLang's functions that write KV, with the fingerprint of the source that ``models.layers.kv_write`` follows."""


def write_early() -> None:
    """After ``Gemma4TextModel.__init__``: enable or disable ``kv_write`` for the process."""
    from sglang_gemma4.models.layers import kv_write

    problem = reason_against()
    if problem is not None:
        decline("kv_write", problem)
    kv_write.want(problem is None)


def reason_against() -> str | None:
    """Why SGLang has to write this process's keys and values, or None."""
    from sglang.srt.environ import envs

    from sglang_gemma4.patching.supported import fingerprint

    if not switches.part_is_on("qkv_rope", "SGLANG_GEMMA4_QKV"):
        return "qkv_rope is off, whose launch would write"
    if envs.SGLANG_ENABLE_ASYNC_ASSERT.get():
        return "SGLang is asked to check each location as it is written"
    for target, expected in WRITES.items():
        write = pkgutil.resolve_name(target)
        if hasattr(write, "__wrapped__"):
            return f"{target} is hooked"
        try:
            found = fingerprint(write)
        except (TypeError, OSError) as error:
            return f"{target} has no source to compare: {error}"
        if found != expected:
            return f"{target} has source {found}, the patch was written for {expected}"
    return None


def hand_over(model: Any) -> None:
    """After ``Gemma4TextModel.__init__``: mark layers whose new keys and values are handed on (patch ``fresh_kv``)."""
    from sglang_gemma4.models.layers import fresh_kv

    if fresh_kv.mark(model) and not switches.part_is_on("qkv_rope", "SGLANG_GEMMA4_QKV"):
        decline("fresh_kv", "qkv_rope is off, whose launch computes them")
