"""A quantised router is read without its scales, since SGLang's router layer is never quantised. Needs no GPU."""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import quantised  # type: ignore[import-not-found]


def chosen(layer: str) -> bool:
    """All of the language model, routers too: llm-compressor's, where nothing is named in ``ignore``."""
    from sglang_gemma4.tiny import quantise

    return quantise.is_chosen(layer) or layer.endswith("router.proj")


def main() -> int:
    """Greedy tokens, against transformers' with the same weights in float32."""
    switches = engines.stock_but("router_scale")  # a failure of its own
    with tempfile.TemporaryDirectory() as folder:
        model = quantised.write(Path(folder) / "model", chosen=chosen)
        seen = engines.ask(model, "quantised:answer", env=switches)
        expected = quantised.expected(model)
    return int(case.verdict(expected, seen))


if __name__ == "__main__":
    sys.exit(main())
