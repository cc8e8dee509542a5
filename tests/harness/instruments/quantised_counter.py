"""Say which linear layers the CPU reference engine dequantised: ``TEST_INSTRUMENTS=quantised_counter:install``."""

from typing import Any


def install() -> None:
    """One line on the log for each, with its outputs and inputs."""
    from sglang_gemma4.cpu import quantised

    module: Any = quantised
    finish = module._finish_linear

    def announced(layer: Any, weight: Any, rounding: Any) -> None:
        finish(layer, weight, rounding)
        print(f"QUANTISED {weight.shape[0]} x {weight.shape[1]}.", flush=True)

    module._finish_linear = announced
