"""A prefill CUDA graph for a model with KV-shared layers (E2B, E4B) ends the start. Needs no GPU. OPEN: issue 7.

Nothing is captured: SGLang's own ``capture_prefill_graph`` fails while it sorts the layers, before it looks at the device.
"""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import open_issue  # type: ignore[import-not-found]

GRAPH = {"disable_cuda_graph": False, "cuda_graph_backend_decode": "disabled", "cuda_graph_backend_prefill": "breakable"}


def main() -> int:
    """What a start with a prefill graph ends in."""
    model = case.text_model("tiny-e2b")
    with tempfile.TemporaryDirectory() as folder:
        seen = case.generate(case.save(model, Path(folder)), **GRAPH)
    return int(open_issue.verdict("issue 7: prefill CUDA graphs", case.greedy(model), seen))


if __name__ == "__main__":
    sys.exit(main())
