"""Experts of a 4-bit checkpoint end the server at the first batch: both of SGLang's kernels for them assert silu. Needs no GPU.

Without a card its Triton kernels are interpreted (``instruments/triton_experts.py``), after the rearrangement of weights that a card gets.
"""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import quantised  # type: ignore[import-not-found]


def main() -> int:
    """Greedy tokens, against transformers' with the same weights in float32."""
    others = ("router_scale", "quantised_names")  # failures of their own
    switches = engines.package_with("quantised_experts", "expert_gelu", *others) or engines.stock_but(*others)
    with tempfile.TemporaryDirectory() as folder:
        model = quantised.write(Path(folder) / "model")
        env = {"TRITON_INTERPRET": "1", **switches}
        prepare = "tests.harness.instruments.triton_experts:install_quantised"
        seen = engines.ask(model, "quantised:answer", env=env, prepare=prepare, moe_runner_backend="triton")
        expected = quantised.expected(model)
    return int(case.verdict(expected, seen))


if __name__ == "__main__":
    sys.exit(main())
