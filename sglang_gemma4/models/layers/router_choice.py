"""A MoE router whose GEMM also chooses the experts, for up to 16 tokens: the launch still has the logits in registers.

It replaces the ``quant_method`` of the router's projection and gives its choice to ``FewTokenExperts``. That returns
the choice when it has to route those very logits, and routes any others itself.
"""

from typing import Any

import torch
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

from sglang_gemma4.kernels.card import reason_against_device
from sglang_gemma4.kernels.experts import routed_product
from sglang_gemma4.models import derived
from sglang_gemma4.models.layers.expert_layers import Chosen, FewTokenExperts
from sglang_gemma4.patching import takes


class RouterChoice(UnquantizedLinearMethod):
    """The ``quant_method`` of a router's projection; the previous one multiplies what this one does not take."""

    def __init__(self, router: Any, experts: FewTokenExperts) -> None:
        super().__init__()
        proj = router.proj
        self.router, self.before, self.experts = router, proj.quant_method, experts
        self.done = derived.scratch(proj, "router_choice_done", routed_product.counter(proj.weight.device))
        self.steps = 0
        """Number of GEMMs that also chose; read by tests."""

    def takes(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether one launch multiplies and chooses. If SGLang routes, ``FewTokenExperts`` says why."""
        experts = self.experts
        if experts.against_routing is not None or not experts.may_route(x):
            return False
        return takes("router_choice", routed_product.reason_against(x, weight, experts.scale, experts.topk))

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """What ``UnquantizedLinearMethod.apply`` returns."""
        weight: Any = layer.weight
        if self.router.proj is not layer:
            takes("router_choice", f"the router's GEMM became a {type(self.router.proj).__name__}: its logits are not final here")
        elif bias is None and self.takes(x, weight):
            chosen = Chosen(*routed_product.routed_product(x, weight, self.experts.scale.data, self.experts.topk, self.done))
            self.experts.chosen = chosen
            self.steps += 1
            return chosen.logits
        out: torch.Tensor = self.before.apply(layer, x, bias)
        return out


def reason_against(layer: Any) -> str | None:
    """Why the router of a ``Gemma4DecoderLayer`` with experts keeps its GEMM, or None."""
    if not isinstance(layer.moe.__dict__.get("few_token_experts"), FewTokenExperts):
        return "few_token_experts is off or declined"
    proj = layer.router.proj
    if problem := reason_against_device(proj.weight.device):
        return problem
    if not isinstance(proj.quant_method, UnquantizedLinearMethod) or proj.bias is not None:
        return f"its GEMM is quantised ({type(proj.quant_method).__name__}) or has a bias"
    weight = torch.empty_like(proj.weight, device="meta", memory_format=torch.contiguous_format)  # one still to be mapped has no strides
    experts: FewTokenExperts = layer.moe.few_token_experts
    scale = torch.empty_like(experts.scale, device="meta", memory_format=torch.contiguous_format)
    return routed_product.reason_against(weight[:1], weight, scale, experts.topk)


def install(model: Any) -> str | None:
    """Replace the router's GEMM in every MoE layer of a ``Gemma4TextModel``. Returns why one keeps its own, or None."""
    problem = None
    for number in range(model.start_layer, model.end_layer):
        layer = model.layers[number]
        if not layer.enable_moe_block:
            continue
        against = reason_against(layer)
        if against is None:
            layer.router.proj.quant_method = RouterChoice(layer.router, layer.moe.few_token_experts)
        problem = problem or against
    return problem
