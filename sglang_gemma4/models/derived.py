"""Every tensor that the package derives from weights or keeps beside them, and how it follows weight updates.

A server's weights change in two ways. An update (``/update_weights_from_disk``, ``_from_tensor``, ``_from_distributed``) writes parameters
in place, so what reads a parameter at each launch follows by itself, in CUDA graphs too: addresses never move. A release and a resume of
memory (``/release_memory_occupation``) discard everything that loading a model allocated on the card; SGLang brings back buffers, and a
trainer the parameters.

:data:`DERIVED` lists all other tensors. ``tests/engine/test_derived_tensors.py`` walks the loaded models, and fails on a tensor
that is neither SGLang's nor in it; ``tests/engine/test_weight_updates.py`` compares every tensor and every answer after each kind of change
with those of a server that was started with the new weights.

Not in it, because no tensor is kept: the query rows of a shared layer's projection, a rank's part of the head, the head of a verify step
and the weights of all norms that a launch fuses are views or parameters, taken at each launch; a kernel is chosen by shapes, types and the
card, never by a weight's values. ``ReadyNorm``, ``FewTokenExperts`` and ``GraphInputs`` keep activations of the step that runs.
"""

import re
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Derived:
    """One kind of tensor.

    Attributes:
        path: a regular expression of the whole path to it, from the target's or the assistant's model.
        holds: what it is, and from which weights.
        made: when, and by what.
        updated: how it follows an update of the weights.
        resumed: how it comes back after a release and a resume of memory.
        host: it lies in the host's memory, where no release reaches it.
        own: it is a tensor that stock SGLang does not have; else it is SGLang's, with other content than the checkpoint's.
    """

    path: str
    holds: str
    made: str
    updated: str
    resumed: str
    host: bool = False
    own: bool = True


_LAYERS = r"(language_model|model)\.layers\.\d+"
_BUFFER = "a buffer: SGLang copies the target's to the host before, patches/released_memory.py the assistant's"
DERIVED = (
    Derived(
        path=rf"{_LAYERS}\.router\.norm\.weight",
        holds="the MoE router's scale times hidden_size ** -0.5, folded into its norm",
        made="when `router.scale` is loaded (models/layers/router.py); stock at the first forward, once",
        updated="the scale's own loader folds it again, in place; after a direct load patches/router_scale.py does",
        resumed=_BUFFER,
        own=False,
    ),
    Derived(
        path=r"lm_head\.weight|model\.embed_tokens\.weight",
        holds="the head of E2B's and E4B's assistant, its rows in the order of `token_ordering`",
        made="after the assistant's weights are loaded, by SGLang",
        updated="back to the vocabulary's order before a load, sorted after it, whatever part of the weights came "
        "(speculative/assistant_weights.py)",
        resumed="a parameter: the trainer loads it",
        own=False,
    ),
    Derived(
        path=r"_sglang_gemma4_head_order",
        holds="the `token_ordering` that the assistant's head is sorted by now",
        made="each time the head is sorted (speculative/assistant_weights.py)",
        updated="made again",
        resumed="never gone",
        host=True,
    ),
    Derived(
        path=rf"{_LAYERS}\.moe\.(few_token_experts_done|few_token_experts\.done)",
        holds="counters of finished parts, zero between launches; from no weight (models/layers/expert_layers.py)",
        made="with the experts",
        updated="nothing to follow",
        resumed=_BUFFER,
    ),
    Derived(
        path=rf"{_LAYERS}\.router\.proj\.(router_choice_done|quant_method\.done)",
        holds="a counter of finished parts, zero between launches; from no weight (models/layers/router_choice.py)",
        made="with the router",
        updated="nothing to follow",
        resumed=_BUFFER,
    ),
    Derived(
        path=r".*\.(few_row_linear_done|quant_method(\.before)?\.done|forward\.method\.done)",
        holds="counters of finished parts, zero between launches; from no weight (models/layers/few_row_linear.py)",
        made="with the linear layer",
        updated="nothing to follow; SGLang's check of weights leaves it alone",
        resumed=_BUFFER,
    ),
    Derived(
        path=r"(language_model|model)\.per_layer_(input|projection)_scale",
        holds="2 ** -0.5 and hidden_size ** -0.5, SGLang's constants of per-layer embeddings; from no weight",
        made="with the model; stock keeps them as plain tensors",
        updated="nothing to follow",
        resumed=_BUFFER,
    ),
    Derived(
        path=rf"{_LAYERS}\.self_attn\.attn\.[kv]_scale",
        holds="in the assistant: the KV scales of the target's layer whose KV it reads (speculative/views.py)",
        made="when the assistant is bound to the target's KV",
        updated="the target's memory; the floats beside it are copied again. Graphs hold the old ones: update with recapture_cuda_graph",
        resumed="a parameter of the target: the trainer loads it",
    ),
)


def entry(path: str) -> Derived | None:
    """The entry for a tensor at this path of its model, or None."""
    return next((one for one in DERIVED if re.fullmatch(one.path, path)), None)


def scratch(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Register a tensor that is in no checkpoint as a buffer of ``module``, which SGLang saves when it releases memory.

    A counter lost in between would not be zero, and the kernel that waits for it would never end.

    Returns:
        The tensor.
    """
    tensor._skip_weight_check = True  # type: ignore[attr-defined]  # SGLang's check of weights fills what it checks with random numbers
    module.register_buffer(name, tensor, persistent=False)
    return tensor
