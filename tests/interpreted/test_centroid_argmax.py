"""The centroid head's token, under Triton's interpreter against the reference over a whole row of logits."""

from collections.abc import Iterator

import pytest
import torch

from sglang_gemma4.kernels.heads import centroid_argmax as op


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Whatever the launchers allocate begins as NaN or the largest integer."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def case(rows: int, width: int, centroids: int, per: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states and scores whose rows are not adjacent, a head, and its tokens in no order."""
    torch.manual_seed(seed)
    return (
        torch.randn(rows, width + 3)[:, :width],
        torch.randn(rows, centroids + 1)[:, :centroids],
        torch.randn(centroids * per, width),
        torch.randperm(centroids * per),
    )


@pytest.mark.parametrize(
    ("rows", "width", "centroids", "per", "active"),
    [(1, 64, 64, 16, 8), (5, 48, 12, 8, 3), (3, 100, 33, 3, 33), (2, 32, 300, 50, 32), (4, 16, 1, 70, 1), (0, 16, 4, 4, 2)],
)
def test_tokens(rows: int, width: int, centroids: int, per: int, active: int) -> None:
    given = case(rows, width, centroids, per)
    found = op.centroid_argmax(*given, active)
    assert found.dtype == torch.int64
    assert torch.equal(found, op.centroid_argmax_reference(*given, active))


def test_only_rows_of_chosen_centroids_count() -> None:
    hidden, scores, weight, ordering = case(1, 32, 8, 4)
    scores[0] = torch.tensor([0.0, 5, 1, 2, 3, -1, -2, -3])
    weight[0:4] = 100 * hidden[0]  # of a centroid that is not chosen
    weight[17] = 2 * hidden[0]
    assert op.centroid_argmax(hidden, scores, weight, ordering, 3).tolist() == [int(ordering[17])]


def test_equal_centroids_and_equal_tokens_go_to_the_lower() -> None:
    hidden, scores, weight, ordering = case(2, 32, 8, 4)
    scores[:] = 0
    weight[:] = 1
    assert op.centroid_argmax(hidden, scores, weight, ordering, 2).tolist() == [int(ordering[:8].min())] * 2


def test_nan_scores_choose_centroids_that_exist() -> None:
    hidden, scores, weight, ordering = case(2, 32, 8, 4)
    scores[0] = float("nan")
    scores[1, 3] = float("nan")
    assert torch.equal(
        op.centroid_argmax(hidden, scores, weight, ordering, 3), op.centroid_argmax_reference(hidden, scores, weight, ordering, 3)
    )


@pytest.mark.parametrize(
    ("place", "tensor", "said"),
    [
        (0, torch.zeros(2, 31), "do not fit"),
        (0, torch.zeros(2, 32, dtype=torch.bfloat16), r"hidden is \(2, 32\) of torch.bfloat16"),
        (1, torch.zeros(3, 8), "for 2 rows"),
        (1, torch.zeros(2, 7), "3 of 7 centroids over 32 tokens"),
        (1, torch.zeros(2, 2), "3 of 2 centroids"),
        (3, torch.zeros(31, dtype=torch.int64), "the token ordering is"),
        (3, torch.zeros(32), "contiguous integers"),
    ],
)
def test_what_it_does_not_take_is_named(place: int, tensor: torch.Tensor, said: str) -> None:
    given = [*case(2, 32, 8, 4)]
    given[place] = tensor
    with pytest.raises(ValueError, match=said):
        op.centroid_argmax(given[0], given[1], given[2], given[3], 3)
