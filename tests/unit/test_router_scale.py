"""``Gemma4Router``: scale applied on the native path, refolded in place by every way weights are loaded."""

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4 import patches
from tests.harness import applied
from tests.harness.child import InChild

HIDDEN, EXPERTS = 32, 8
PATCH = patches.load("router_scale")


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    importlib.import_module("sglang.srt.models.gemma4_causal")
    importlib.import_module("sglang.srt.model_executor.model_runner_components.weight_updater")


def router(switch: str) -> Any:
    """SGLang's router on the CPU with random weights; the patch is applied first."""
    applied.apply([PATCH], switch)
    from sglang.srt.models.gemma4_causal import Gemma4Router

    torch.manual_seed(0)
    made = Gemma4Router(SimpleNamespace(hidden_size=HIDDEN, rms_norm_eps=1e-6, num_experts=EXPERTS))
    made.proj.weight.data = torch.randn(EXPERTS, HIDDEN)
    load(made, torch.randn(HIDDEN))
    return made


def load(made: Any, scale: torch.Tensor) -> None:
    """As every ``load_weights`` of SGLang's Gemma 4 models does (gemma4_causal.py:1425, gemma4_mm.py:1063)."""
    from sglang.srt.model_loader.weight_utils import default_weight_loader

    getattr(made.scale, "weight_loader", default_weight_loader)(made.scale, scale)


def expected(made: Any, x: torch.Tensor) -> torch.Tensor:
    """transformers' Gemma4TextRouter: norm without weight, scale, hidden_size**-0.5, projection."""
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return normed * made.scale * HIDDEN**-0.5 @ made.proj.weight.T


def errors(switch: str, update: Callable[[Any], None]) -> list[float]:
    """Greatest error of the logits [tokens, experts] before and after an update, and 0.0 if the fold kept its storage."""
    made = router(switch)
    x = torch.randn(5, HIDDEN)
    with torch.no_grad():
        first = (made(x) - expected(made, x)).abs().max().item()
        where = made.norm.weight.data_ptr()
        update(made)
        second = (made(x) - expected(made, x)).abs().max().item()
    return [first, second, float(made.norm.weight.data_ptr() != where)]


def update_by_loader(made: Any) -> None:
    load(made, torch.randn(HIDDEN))


def update_directly(made: Any) -> None:
    from sglang.srt.model_executor.model_runner_components import weight_updater

    model = torch.nn.ModuleDict({"router": made})
    weight_updater._model_load_weights_direct(model, [("router.scale", torch.randn(HIDDEN))])


@pytest.mark.parametrize("update", [update_by_loader, update_directly])
def test_logits_equal_transformers_before_and_after_an_update(update: Callable[[Any], None], in_child: InChild) -> None:
    first, second, moved = in_child(lambda: errors("1", update))
    assert max(first, second) < 1e-5
    assert moved == 0.0, "a captured CUDA graph reads the fold by address"


def test_stock_ignores_the_scale(in_child: InChild) -> None:
    assert in_child(lambda: errors("0", update_by_loader))[0] > 0.1, "SGLang is right now: remove the patch"


@pytest.mark.parametrize(("switch", "stale"), [("0", True), ("1", False)])
def test_the_fold_follows_an_update(switch: str, stale: bool, in_child: InChild) -> None:
    """The value that the CUDA kernel multiplies by."""

    def child() -> bool:
        made = router(switch)
        made(torch.randn(2, HIDDEN))
        update_by_loader(made)
        return not torch.equal(made.norm.weight, (made.scale * made.root_size).detach())

    assert in_child(child) == stale


@pytest.mark.parametrize("switch", ["0", "1"])
def test_the_cuda_path_makes_the_same_one_call(switch: str, in_child: InChild) -> None:
    """Same kernel, same weight, one launch: the patch costs nothing where stock was right."""

    def child() -> list[Any]:
        from sglang.srt.layers import layernorm

        made = router(switch)
        made.fuse_scale()
        calls: list[Any] = []

        def record(name: str) -> Callable[..., torch.Tensor]:
            def kernel(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
                calls.append((name, weight.tolist(), eps))
                return x

            return kernel

        for name in ("rmsnorm", "gemma_rmsnorm"):
            setattr(layernorm, name, record(name))
        made.norm.forward_cuda(torch.randn(5, HIDDEN))
        return [calls, (made.scale * made.root_size).tolist()]

    calls, folded = in_child(child)
    assert calls == [["rmsnorm", folded, 1e-6]]


def test_other_norms_without_scale_stay_without(in_child: InChild) -> None:
    def child() -> bool:
        router("1")
        from sglang.srt.layers.layernorm import Gemma4RMSNorm

        return bool(Gemma4RMSNorm(8, with_scale=False).with_scale)

    assert in_child(child) is False
