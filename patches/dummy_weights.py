"""--load-format dummy fills Gemma 4 with weights of realistic spread, so that tokens and experts vary."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch, uses


def fill_gemma4(original: Callable[..., None], model: Any, low: float = -1e-3, high: float = 1e-3, seed: int = 1234) -> None:
    """Fill Gemma 4 models and assistants with spread weights; leave every other model to SGLang."""
    if not type(model).__name__.startswith("Gemma4"):
        original(model, low, high, seed)
        return
    from sglang_gemma4.tiny.shared_weights import current
    from sglang_gemma4.tiny.spread_weights import fill

    sharing = current()
    fill(model, seed, leave=sharing.attach(model) if sharing else set())
    if sharing:
        sharing.share(model)


def load_shared(original: Callable[..., Any], loader: Any, *, model_config: Any, device_config: Any) -> Any:
    """Where a benchmark's arms share one copy of the weights, this process takes its part in it."""
    from sglang.srt.runtime_context import get_parallel

    from sglang_gemma4.tiny.shared_weights import check_format, loading

    (architecture,) = model_config.hf_config.architectures
    if not architecture.startswith("Gemma4"):
        return original(loader, model_config=model_config, device_config=device_config)
    check_format(model_config.quantization, getattr(model_config.hf_config, "quantization_config", None))
    with loading(f"{architecture}-{get_parallel().tp_rank}-of-{get_parallel().tp_size}"):
        return original(loader, model_config=model_config, device_config=device_config)


PATCH = Patch(
    switch="SGLANG_GEMMA4_DUMMY_WEIGHTS",
    why="Uniform(±1e-3) weights collapse to one repeated token and eight experts: a benchmark of nothing.",
    evidence="srt/model_loader/weight_utils.py (initialize_dummy_weights)",
    remove_when="SGLang's dummy weights keep activations at unit scale.",
    uses=(uses.random_weights,),
    hooks=(
        Hook("sglang.srt.model_loader.weight_utils.initialize_dummy_weights", "around", fill_gemma4, "d54d8b145f6f"),
        Hook("sglang.srt.model_loader.loader.DummyModelLoader.load_model", "around", load_shared, "e6ad5c3811e2"),
    ),
)
