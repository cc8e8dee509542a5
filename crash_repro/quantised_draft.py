"""A target's --quantization is taken for its MTP assistant too, which has none: no quantization_config to read. Needs no GPU."""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import quantised  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]


def main() -> int:
    """Greedy tokens under MTP, against transformers' with the same weights in float32."""
    switches = engines.stock_but("router_scale", shipped.SYNC_MTP)  # failures of their own
    with tempfile.TemporaryDirectory() as folder:
        model = quantised.write(Path(folder) / "model")
        mtp = shipped.mtp("tiny-26b-a4b")
        seen = engines.ask(model, "quantised:answer", env=switches, quantization="compressed-tensors", **mtp)
        expected = quantised.expected(model)
    return int(case.verdict(expected, seen))


if __name__ == "__main__":
    sys.exit(main())
