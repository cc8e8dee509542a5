"""The case of a draft step's head: the GEMM with the embedding of 262,144 tokens, or of a few centroids, and its argmax."""

from functools import partial
from itertools import starmap
from types import SimpleNamespace

import torch

from sglang_gemma4.benchmark.kernels.harness import Case, Place, Row, candidates
from sglang_gemma4.benchmark.kernels.timer import Call
from sglang_gemma4.kernels.heads.centroid_argmax import centroid_argmax
from sglang_gemma4.kernels.heads.head_argmax import Tile, head_argmax

TILES = (
    (64, 128, 4, 4, 2), (64, 128, 4, 3, 3), (64, 256, 4, 3, 2), (128, 64, 4, 4, 2), (128, 128, 8, 3, 2),
    (128, 64, 8, 3, 2), (128, 64, 8, 5, 1), (128, 128, 8, 4, 1), (256, 64, 8, 4, 1), (256, 64, 8, 3, 1),
)  # fmt: skip
ACTIVE = 32
"""Number of centroids whose tokens E2B's and E4B's assistants score."""


def head(place: Place, head: str, rows: int) -> Row:
    """The row of one head. ``head``: the width of a full head, or "centroids"; SGLang's loop, the chain's launches, our kernel."""
    from sglang_gemma4.speculative import chain

    vocabulary, centroids = place.pick((262144, 2048), (512, 64))
    width = place.pick(256 if head == "centroids" else int(head), 64)
    weight, hidden = place.rand(vocabulary, width), place.rand(rows, width)
    if head != "centroids":
        ways: dict[str, Call] = {
            "SGLang": lambda: (hidden @ weight.T).float().softmax(-1).max(-1).indices,
            "chain": lambda: chain.largest((hidden @ weight.T).float()),
            "ours": lambda: head_argmax(hidden, weight)[0],
        }
        tiles = candidates(lambda tile: head_argmax(hidden, weight, tile=tile)[0], starmap(Tile, TILES))
        return Row(ways, 2.0 * vocabulary * width, tiles=tiles)
    scores = place.rand(centroids, width)
    model = SimpleNamespace(
        centroids=partial(torch.nn.functional.linear, weight=scores),
        centroid_intermediate_top_k=ACTIVE,
        num_centroids=centroids,
        vocab_size=vocabulary,
        hidden_size=width,
        vocab_size_per_centroid=vocabulary // centroids,
        token_ordering=torch.randperm(vocabulary, device=place.device),
        lm_head=SimpleNamespace(weight=weight),
    )

    def stock() -> torch.Tensor:
        from sglang.srt.models.gemma4_mtp import Gemma4AssistantForCausalLM

        logits: torch.Tensor = Gemma4AssistantForCausalLM._apply_centroid_masking(model, hidden)
        return logits.softmax(-1).max(-1).indices

    read = centroids * (1 - (1 - ACTIVE / centroids) ** rows) * vocabulary / centroids + centroids  # random rows, each read once
    ways = {
        "SGLang": stock,
        "chain": lambda: chain.centroid_tokens(model, hidden)[:, 0],
        "ours": lambda: centroid_argmax(hidden, model.centroids(hidden), weight, model.token_ordering, ACTIVE),
    }
    return Row(ways, 2.0 * read * width)


CASES = (
    Case(
        "heads",
        "a draft step's token: SGLang's logits, softmax and maximum; the chain's GEMM and split argmax; ours; floor: weights read once",
        {"head": ("1024", "256", "centroids"), "rows": (1, 8, 16, 32, 48, 80)},
        head,
        {"head": ("256", "centroids"), "rows": (3,)},
    ),
)
