"""What a verify step of chains accepts, in one launch, against a walk in Python; ``tests/gpu`` has SGLang's own launches beside it."""

import pytest
import torch

from sglang_gemma4.kernels.accept_chain import BLOCK, Accepted, Relay, accept_chain

VOCABULARY = 3
"""So few tokens that drafts of every length are accepted."""


def walk(drafted: torch.Tensor, targets: torch.Tensor, seq_lens: torch.Tensor, hidden: torch.Tensor, simulated: int) -> Accepted:
    requests, nodes = drafted.shape
    predict = torch.zeros(requests, nodes, dtype=torch.int32)
    index = torch.full((requests, nodes), -1, dtype=torch.int32)
    lengths, last, rows = [], [], []
    for request in range(requests):
        accepted = 0
        while accepted < nodes - 1 and drafted[request, accepted + 1] == targets[request, accepted]:
            accepted += 1
        accepted = simulated - 1 if simulated else accepted
        for node in range(accepted):
            predict[request, node] = drafted[request, node + 1]
        predict[request, accepted] = targets[request, accepted]
        index[request, : accepted + 1] = torch.arange(accepted + 1) + request * nodes
        lengths.append(accepted + 1)
        last.append(int(targets[request, accepted]))
        rows.append(request * nodes + accepted)
    taken = torch.tensor(lengths, dtype=torch.int32)
    return Accepted(predict.view(-1), taken, index, seq_lens + taken, torch.tensor(last), hidden[rows])


def inputs(requests: int, nodes: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(requests * nodes)
    drafted, targets = (torch.randint(VOCABULARY, (requests, nodes), generator=generator) for _ in range(2))
    hidden = torch.randn(requests * nodes, width + 8, generator=generator).bfloat16()[:, :width]
    return drafted, targets, torch.randint(1, 5000, (requests,), generator=generator), hidden


@pytest.mark.parametrize("simulated", [0, 1, 2])
@pytest.mark.parametrize(("requests", "nodes", "width"), [(1, 4, 64), (7, 4, BLOCK + 3), (5, 2, BLOCK), (3, 1, 16), (33, 6, 8)])
def test_as_a_walk(requests: int, nodes: int, width: int, simulated: int) -> None:
    simulated = min(simulated, nodes)
    drafted, targets, seq_lens, hidden = inputs(requests, nodes, width)
    found = accept_chain(drafted.view(-1), targets, seq_lens, hidden, simulated=simulated)
    expected = walk(drafted, targets, seq_lens, hidden, simulated)
    if requests > 4 and not simulated:
        assert len(set(expected.lengths.tolist())) > 1, "else this shows little"
    for name, one, other in zip(Accepted._fields, found, expected, strict=True):
        assert one.dtype == other.dtype, name
        assert torch.equal(one, other), name


def test_lengths_and_tokens_are_relayed_to_the_places_of_requests() -> None:
    drafted, targets, seq_lens, hidden = inputs(5, 4, 32)
    relay = Relay(torch.full((12,), -7), torch.full((12,), -7))
    places = torch.tensor([11, 2, 5, 3, 8])
    found = accept_chain(drafted.view(-1), targets.view(-1), seq_lens, hidden, relay, places)
    assert torch.equal(relay.lengths[places], found.new_lengths)
    assert torch.equal(relay.tokens[places], found.last)
    others = [place for place in range(12) if place not in places]
    assert (relay.lengths[others] == -7).all()
    assert (relay.tokens[others] == -7).all()


def test_what_does_not_belong_together_is_refused() -> None:
    drafted, targets, seq_lens, hidden = inputs(3, 4, 32)
    flat = drafted.view(-1)
    for wrong in (
        (flat[:-1], targets, seq_lens, hidden),
        (flat, targets[:2], seq_lens, hidden),
        (flat, targets, seq_lens, hidden[:5]),
        (flat, targets, seq_lens[:0], hidden),
        (flat, targets, seq_lens, hidden, None, None, 5),
    ):
        with pytest.raises(ValueError, match="drafted tokens"):
            accept_chain(*wrong)
    with pytest.raises(ValueError, match="side by side"):
        accept_chain(drafted.T.contiguous().T.flatten()[::1], targets, seq_lens, hidden.T.contiguous().T)
    with pytest.raises(ValueError, match="a relay wants places"):
        accept_chain(flat, targets, seq_lens, hidden, Relay(seq_lens, seq_lens))
