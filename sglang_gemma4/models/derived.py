"""Every tensor that the package derives from weights or keeps beside them, and how it follows weight updates.

A server's weights change in two ways:

- An update (``/update_weights_from_disk``, ``_from_tensor``, ``_from_distributed``) writes parameters in place.
  Addresses never move, so whatever reads a parameter at each launch follows by itself, in CUDA graphs too.
- A release and a resume of memory (``/release_memory_occupation``) discard everything that loading a model allocated on
  the GPU. SGLang restores buffers, and a trainer the parameters.

:data:`DERIVED` lists all other tensors. ``tests/engine/test_derived_tensors.py`` walks the loaded models, and fails on
a tensor that is neither SGLang's nor listed. ``tests/engine/test_weight_updates.py`` compares every tensor and every
answer after each type of change with those of a server that was started with the new weights.

Some things are not listed because no tensor is kept. The query rows of a shared layer's projection, a rank's part of
the head, the head of a verify step and the weights of fused norms are views or parameters, taken at each launch.
Kernels are chosen by shapes, types and the GPU, never by a weight's values. ``ReadyNorm``, ``FewTokenExperts`` and
``GraphInputs`` keep activations of the running step.
"""

import re
from typing import NamedTuple

import torch


class Derived(NamedTuple):
    """A type of tensor: ``path``, a regular expression of its path from the target's or the assistant's model.

    ``follows``: what it is and how it follows a weight update and a release. ``host``: it is in host memory, which no
    release affects. ``own``: stock SGLang does not have it; otherwise it is SGLang's, with other content than the
    checkpoint's.
    """

    path: str
    follows: str
    host: bool = False
    own: bool = True


_LAYERS = r"(language_model|model)\.layers\.\d+"
_COUNTERS = "counters of finished parts, zero between launches, from no weight; a buffer"
DERIVED = (
    # Buffers: SGLang copies the target's to the host before a release, patches/released_memory.py the assistant's.
    Derived(
        rf"{_LAYERS}\.router\.norm\.weight",
        "the MoE router's scale times hidden_size ** -0.5, folded in again when the scale is loaded (models/layers/router.py); a buffer",
        own=False,
    ),
    Derived(rf"{_LAYERS}\.moe\.(few_token_experts_done|few_token_experts\.done)", _COUNTERS),
    Derived(
        rf"{_LAYERS}\.moe\.experts\.run_moe_core(\.before)*\.room|.*\.scheme\.room",
        "where 4-bit weights are dequantised for steps of many rows, of all layers' experts and of all dense GEMMs; not saved, since "
        "nothing stays in it",
    ),
    Derived(
        r".*\.scheme\.copy",
        "4-bit dense weights as bfloat16 (patches/dense_copies.py), made when they are loaded and never again: rearranged weights take no "
        "update (models/quantised_updates.py); a release discards or keeps both",
    ),
    Derived(rf"{_LAYERS}\.router\.proj\.(router_choice_done|quant_method\.done)", _COUNTERS),
    Derived(r".*\.(few_row_linear_done|quant_method(\.before)?\.done|forward\.method\.done)", _COUNTERS),
    Derived(
        r"(language_model|model)\.per_layer_(input|projection)_scale",
        "2 ** -0.5 and hidden_size ** -0.5, constants of per-layer embeddings, plain tensors in stock; a buffer",
    ),
    # Of the assistant.
    Derived(
        r"lm_head\.weight|model\.embed_tokens\.weight",
        "the head of E2B's and E4B's assistant in the order of `token_ordering`: in the vocabulary's order before a load, sorted after it "
        "(speculative/assistant_weights.py); a parameter, which the trainer loads after a resume",
        own=False,
    ),
    Derived(r"_sglang_gemma4_head_order", "the `token_ordering` by which the assistant's head is sorted; made at each sorting", host=True),
    Derived(
        rf"{_LAYERS}\.self_attn\.attn\.[kv]_scale",
        "the KV scales of the target's layer whose KV it reads (speculative/views.py): the target's memory, the floats beside it copied "
        "again. Graphs hold the old ones: update with recapture_cuda_graph",
    ),
)


def entry(path: str) -> Derived | None:
    """The entry for a tensor at this path of its model, or None."""
    return next((one for one in DERIVED if re.fullmatch(one.path, path)), None)


def scratch(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Register a tensor that is in no checkpoint as a buffer of ``module``, which SGLang saves when it releases memory.

    Without this a counter might not be zero after a release, and the kernel that waits for it would never end.

    Returns:
        The tensor.
    """
    tensor._skip_weight_check = True  # type: ignore[attr-defined]  # SGLang's weight check fills tensors with noise
    module.register_buffer(name, tensor, persistent=False)
    return tensor
