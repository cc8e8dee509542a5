"""A prefill CUDA graph for a model with KV-shared layers (E2B, E4B) ends the start. Needs no GPU.

Stock fails while it sorts the layers, before it looks at the device. What is captured with the patch is recorded and replayed operator by
operator (``tests/harness/instruments/recorded_graphs.py``), for want of CUDA graphs; ``tests/gpu/test_prefill_graph.py`` has those.
"""

import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]

GRAPH = {"disable_cuda_graph": False, "cuda_graph_backend_decode": "disabled", "cuda_graph_backend_prefill": "breakable"}


def main() -> int:
    """What a start with a prefill graph ends in."""
    model = case.text_model("tiny-e2b")
    with tempfile.TemporaryDirectory() as folder:
        path = case.save(model, Path(folder))
        seen = case.generate(
            path, prepare="tests.harness.instruments.recorded_graphs:install", cuda_graph_bs_prefill=[64, 128, 192], **GRAPH
        )
    return int(case.verdict(case.greedy(model), seen))


if __name__ == "__main__":
    sys.exit(main())
