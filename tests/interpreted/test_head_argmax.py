"""LM head and argmax in one pass, under Triton's interpreter against the reference: odd shapes, ties, padding, ranges of a vocabulary."""

from collections.abc import Iterator

import pytest
import torch

from sglang_gemma4.kernels.heads import head_argmax as op
from sglang_gemma4.kernels.heads.head_argmax import Tile

SMALL = Tile(32, 32, 4, 2, 2)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Whatever the launchers allocate begins as NaN or the largest integer."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def case(rows: int, width: int, vocabulary: int, padding: int = 0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states whose rows are not adjacent, and a head; rows of padding would win by far."""
    torch.manual_seed(seed)
    hidden = torch.randn(rows, width + 5)[:, :width]
    weight = torch.randn(vocabulary + padding, width)
    weight[vocabulary:] = 100 * hidden[:1].sign() if rows else 1
    return hidden, weight


def exact_case(rows: int, width: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers: equal rows of the head have equal scores in whatever order a BLAS adds them up."""
    hidden, weight = case(rows, width, vocabulary)
    return hidden.round(), weight.round()


@pytest.mark.parametrize("programs", [None, 1, 7, 64])
@pytest.mark.parametrize(
    ("rows", "width", "vocabulary", "padding"),
    [(1, 64, 1024, 0), (3, 48, 1000, 24), (17, 128, 333, 1), (80, 100, 97, 31), (128, 16, 8, 0), (5, 256, 1, 0), (0, 64, 64, 0)],
)
def test_tokens_and_scores(rows: int, width: int, vocabulary: int, padding: int, programs: int | None) -> None:
    hidden, weight = case(rows, width, vocabulary, padding)
    expected, best = op.head_argmax_reference(hidden, weight, vocabulary=vocabulary)
    tokens, pairs = op.head_argmax(hidden, weight, vocabulary=vocabulary, programs=programs, tile=SMALL if programs else None)
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(pairs, best, atol=1e-5, rtol=1e-5)


def test_the_lowest_token_wins_a_tie_within_a_block_a_program_and_across() -> None:
    hidden, weight = exact_case(4, 32, 500)
    hidden[:] = hidden[0].clone()
    for places in ([7, 8], [40, 100], [3, 499], [200, 201, 480]):
        head = weight.clone()
        head[places] = 3 * hidden[0]
        for programs in (1, 3, 11):
            assert op.head_argmax(hidden, head, programs=programs, tile=SMALL)[0].tolist() == [places[0]] * 4


def test_nan_and_infinity() -> None:
    hidden, weight = case(3, 32, 200)
    weight[50] = float("nan")
    tokens, _ = op.head_argmax(hidden, weight, programs=3, tile=SMALL)
    assert torch.equal(tokens, op.head_argmax_reference(hidden, weight)[0])
    hidden[1] = float("nan")
    assert op.head_argmax(hidden, weight, programs=3, tile=SMALL)[0][1] == 0, "a token that exists, whatever the scores are"


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_join_to_the_whole(ranks: int) -> None:
    hidden, weight = exact_case(6, 64, 512)
    weight[[100, 300]] = 3 * hidden[2]
    share = 512 // ranks
    parts = [
        op.head_argmax(hidden, weight[rank * share : (rank + 1) * share], first_token=rank * share, programs=2)[1] for rank in range(ranks)
    ]
    tokens, best = op.join_pairs(torch.stack(parts))
    assert torch.equal(tokens, op.head_argmax_reference(hidden, weight)[0])
    assert tokens[2] == 100
    assert torch.equal(best[1].long(), tokens)


@pytest.mark.parametrize(
    ("hidden", "weight", "vocabulary", "said"),
    [
        (torch.zeros(2, 32), torch.zeros(8, 64), None, "do not fit"),
        (torch.zeros(2, 32), torch.zeros(8, 32, dtype=torch.bfloat16), None, r"weight is \(8, 32\) of torch.bfloat16"),
        (torch.zeros(2, 32, dtype=torch.float64), torch.zeros(8, 32, dtype=torch.float64), None, r"weight is \(8, 32\) of torch.float64"),
        (torch.zeros(129, 32), torch.zeros(8, 32), None, "129 rows; up to 128"),
        (torch.zeros(2, 64)[:, ::2], torch.zeros(8, 32), None, "matrices with contiguous rows"),
        (torch.zeros(2, 32), torch.zeros(8, 32), 9, "9 tokens of a head of 8"),
        (torch.zeros(2, 32), torch.zeros(8, 32), 0, "0 tokens of a head of 8"),
    ],
)
def test_what_it_does_not_take_is_named(hidden: torch.Tensor, weight: torch.Tensor, vocabulary: int | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        op.head_argmax(hidden, weight, vocabulary=vocabulary)
