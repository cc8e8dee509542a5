"""A quantised checkpoint that leaves the attention of its K = V layers alone does not load: they have no v_proj to name. Needs no GPU."""

import re
import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import quantised  # type: ignore[import-not-found]

LAST = re.compile(r".*layers\.5\.self_attn\..*")
"""The full layer of tiny-26b-a4b."""


def chosen(layer: str) -> bool:
    """All of the language model but that layer's attention."""
    from sglang_gemma4.tiny import quantise

    return quantise.is_chosen(layer) and LAST.match(layer) is None


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
