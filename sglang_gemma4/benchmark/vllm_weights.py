"""A vLLM plugin that fills ``--load-format dummy`` with the weights of realistic spread that the SGLang arms have.

It runs in vLLM's environment, which has neither SGLang nor this package's other requirements (``vllm.plugin``).
"""

from typing import Any

FILLED = "sglang-gemma4: random weights of realistic spread"  # printed, so that the server's log shows how the weights were filled


def register() -> None:
    """Have vLLM's dummy loader fill models like ``tiny/spread_weights``."""
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader  # type: ignore[import-not-found, unused-ignore]

    from sglang_gemma4.tiny.spread_weights import fill

    def load_weights(_: Any, model: Any, *__: Any) -> None:
        fill(model, seed=1234)  # SGLang's seed for dummy weights
        print(f"{FILLED}: {type(model).__name__}", flush=True)

    DummyModelLoader.load_weights = load_weights
