"""On a card: what a verify step accepts by one launch is what SGLang's launches say, and how long the host takes for both."""

import time
from collections.abc import Callable

import pytest
import torch

from sglang_gemma4.kernels.accept_chain import Accepted, Relay, accept_chain

NODES, HIDDEN, VOCABULARY = 4, 2816, 3


def inputs(requests: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(requests)
    drafted, targets = (torch.randint(VOCABULARY, (requests, NODES), device="cuda") for _ in range(2))
    return (
        drafted,
        targets,
        torch.randint(1, 9000, (requests,), device="cuda"),
        torch.randn(requests * NODES, HIDDEN, device="cuda").bfloat16(),
    )


def by_sglang(
    drafted: torch.Tensor, targets: torch.Tensor, seq_lens: torch.Tensor, hidden: torch.Tensor, relay: Relay, places: torch.Tensor
) -> Accepted:
    """As ``eagle_sample``, ``run_eagle_verify``, this package's chain and ``FutureMap`` do."""
    from sglang.kernels.ops.speculative.eagle import prepare_verify_commit_outputs
    from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_func

    requests = seq_lens.numel()
    nodes = torch.arange(requests * NODES, device="cuda").view(requests, NODES)
    following = torch.where(nodes % NODES == NODES - 1, -1, nodes % NODES + 1)
    predict, index, correct = verify_tree_greedy_func(
        predicts=torch.zeros(requests * NODES, dtype=torch.int32, device="cuda"),
        accept_index=torch.full((requests, NODES), -1, dtype=torch.int32, device="cuda"),
        accept_token_num=torch.empty(requests, dtype=torch.int32, device="cuda"),
        candidates=drafted, retrieve_index=nodes, retrieve_next_token=following, retrieve_next_sibling=torch.full_like(nodes, -1),
        target_predict=targets, topk=1,
    )  # fmt: skip
    lengths = correct + 1
    new_lengths, last, *_ = prepare_verify_commit_outputs(predict, index, lengths, seq_lens, num_draft_tokens=NODES)
    relay.lengths[places], relay.tokens[places] = new_lengths, last.long()
    return Accepted(predict, lengths, index, new_lengths, last.long(), hidden[nodes[:, 0] - 1 + lengths])


@pytest.mark.parametrize("requests", [1, 2, 8, 80])
def test_as_sglang_s_launches(requests: int) -> None:
    given, places = inputs(requests), torch.randperm(100, device="cuda")[:requests]
    relays = [Relay(*(torch.full((100,), -7, device="cuda") for _ in range(2))) for _ in range(2)]
    ours = accept_chain(given[0].view(-1), *given[1:], relays[0], places)
    theirs = by_sglang(*given, relays[1], places)
    for name, one, other in zip(Accepted._fields, ours, theirs, strict=True):
        assert torch.equal(one, other), name
    assert torch.equal(relays[0].lengths, relays[1].lengths)
    assert torch.equal(relays[0].tokens, relays[1].tokens)
    if requests > 4:
        assert len(set(ours.lengths.tolist())) > 1, "else this shows little"


def test_the_host_takes_less_time() -> None:
    given, places = inputs(1), torch.zeros(1, dtype=torch.int64, device="cuda")
    relay = Relay(*(torch.zeros(4, dtype=torch.int64, device="cuda") for _ in range(2)))
    flat = given[0].view(-1)

    def microseconds(launch: Callable[[], object]) -> float:
        for _ in range(20):
            launch()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(200):
            launch()
        taken = time.perf_counter() - started
        torch.cuda.synchronize()
        return taken * 5000

    found = [
        (microseconds(lambda: accept_chain(flat, *given[1:], relay, places)), microseconds(lambda: by_sglang(*given, relay, places)))
        for _ in range(5)
    ]
    ours, theirs = (sorted(each)[2] for each in zip(*found, strict=True))
    print(f"the host takes {ours:.0f} us for one launch, {theirs:.0f} for SGLang's and what makes their inputs")
    assert ours < theirs
