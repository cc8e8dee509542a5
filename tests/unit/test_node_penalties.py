"""Penalties of a draft chain's nodes against SGLang's own penalizers, fed the same tokens one by one as plain decoding feeds them."""

import random
from array import array
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.speculative.node_penalties import Counted, Table, last_run, penalise

VOCABULARY = 7
"""Small, so that tokens repeat."""
EOS = 3
NONE: dict[str, float] = {}
KINDS: list[dict[str, float]] = [
    NONE,
    {"frequency_penalty": 0.7},
    {"presence_penalty": -0.4},
    {"repetition_penalty": 1.3},
    {"min_new_tokens": 6},
    {"frequency_penalty": -0.2, "presence_penalty": 0.9, "repetition_penalty": 0.8, "min_new_tokens": 3},
]


@dataclass
class Request:
    """What penalizers and counts read of a request."""

    sampling: dict[str, float]
    prompt: int = 5
    output_ids: Any = field(default_factory=lambda: array("q"))

    def __post_init__(self) -> None:
        from sglang.srt.sampling.sampling_params import SamplingParams

        self.sampling_params = SamplingParams(**self.sampling)  # type: ignore[arg-type]
        self.origin_input_ids = [0] * self.prompt
        self.eos_token_ids = {EOS}
        self.tokenizer = SimpleNamespace(eos_token_id=EOS, additional_stop_token_ids=None)


class Batch:
    """What SGLang's orchestrator asks of a batch."""

    def __init__(self, reqs: list[Request]) -> None:
        self.reqs, self.device = reqs, "cpu"


def orchestrator(batch: Batch) -> Any:
    from sglang.srt.sampling import penaltylib

    kinds = [
        penaltylib.BatchedFrequencyPenalizer,
        penaltylib.BatchedPresencePenalizer,
        penaltylib.BatchedRepetitionPenalizer,
        penaltylib.BatchedMinNewTokensPenalizer,
    ]
    made = penaltylib.BatchedPenalizerOrchestrator(VOCABULARY, batch, set(kinds))  # type: ignore[arg-type]
    made.penalizers = {kind: made.penalizers[kind] for kind in kinds}
    return made


def plain(request: Request, answer: list[int], logits: torch.Tensor) -> torch.Tensor:
    """The logits [vocabulary] of the token after ``answer``, penalised as plain decoding does."""
    batch = Batch([Request(request.sampling)])
    penalizers = orchestrator(batch)
    for token in answer:
        penalizers.cumulate_output_tokens(torch.tensor([token]))
    result = logits.clone()[None]
    penalizers.apply(result)
    return result[0]


class Decoding:
    """Requests under penalties whose answers grow by accepted runs. The host learns of a run ``lag`` steps later."""

    def __init__(self, samplings: list[dict[str, float]], lag: int, seed: int, longest: int = 4) -> None:
        self.rng, self.lag, self.longest = random.Random(seed), lag, longest
        self.generator = torch.Generator().manual_seed(seed)
        self.answers: dict[int, list[int]] = {}
        self.pending: list[list[tuple[Request, list[int]]]] = []
        self.runs: dict[int, torch.Tensor] = {}
        self.batch, self.penalizers = self.joining(samplings)

    def joining(self, samplings: list[dict[str, float]]) -> tuple[Batch, Any]:
        from sglang_gemma4.speculative import verify_penalties

        reqs = [Request(sampling, prompt=self.rng.randrange(1, 9)) for sampling in samplings]
        batch = Batch(reqs)
        penalizers = orchestrator(batch)
        verify_penalties.begin(penalizers, batch)
        first = [(req, [self.rng.randrange(VOCABULARY)]) for req in reqs]
        for req, [token] in first:
            self.answers[id(req)] = [token]
            self.runs[id(req)] = torch.full((self.longest - 1,), VOCABULARY - 1)
        if self.lag:
            self.pending.append(first)
        else:
            self.learn(first)
        return batch, penalizers

    def learn(self, runs: list[tuple[Request, list[int]]]) -> None:
        for req, tokens in runs:
            req.output_ids.extend(tokens)

    def step(self, nodes: int) -> None:
        """One verify: its logits must be plain decoding's at each node; a run of random length is accepted."""
        from sglang_gemma4.speculative import verify_penalties

        reqs = self.batch.reqs
        verify_penalties.count(self.penalizers, reqs)
        state = verify_penalties.counted(self.penalizers, reqs)  # type: ignore[arg-type]
        if self.lag:
            self.learn(self.pending.pop(0))
        answers = [self.answers[id(req)] for req in reqs]
        chain = torch.tensor([[answer[-1], *(self.rng.randrange(VOCABULARY) for _ in range(nodes - 1))] for answer in answers])
        lengths = torch.tensor([req.prompt + len(answer) - 1 for req, answer in zip(reqs, answers, strict=True)])
        earlier = torch.stack([self.runs[id(req)] for req in reqs]) if self.lag else chain[:, :0]
        given = torch.randn(len(reqs), nodes, VOCABULARY, generator=self.generator)
        found = given.clone()
        penalise(found, chain, earlier, lengths, state)
        for row, (req, answer) in enumerate(zip(reqs, answers, strict=True)):
            for node in range(nodes):
                expected = plain(req, answer + chain[row, 1 : node + 1].tolist(), given[row, node])
                torch.testing.assert_close(found[row, node], expected, rtol=1e-5, atol=1e-5)
                if req.sampling is NONE:
                    assert torch.equal(found[row, node], given[row, node])

        accepted = torch.tensor([self.rng.randrange(1, nodes + 1) for _ in reqs])
        following = torch.cat([chain[:, 1:], torch.full((len(reqs), 1), 0)], 1)
        bonus = torch.tensor([[self.rng.randrange(VOCABULARY)] for _ in reqs])
        predicted = following.scatter(1, accepted[:, None] - 1, bonus)
        kept = last_run(predicted, accepted, self.longest - 1)
        runs = []
        for row, req in enumerate(reqs):
            run = predicted[row, : accepted[row]].tolist()
            runs.append((req, run))
            answers[row].extend(run)
            self.runs[id(req)] = kept[row]
        if self.lag:
            self.pending.append(runs)
        else:
            self.learn(runs)

    def leave(self, row: int) -> None:
        keep = [other for other in range(len(self.batch.reqs)) if other != row]
        self.batch.reqs = [self.batch.reqs[other] for other in keep]
        self.penalizers.filter(torch.tensor(keep))

    def join(self, samplings: list[dict[str, float]]) -> None:
        batch, penalizers = self.joining(samplings)
        self.penalizers.merge(penalizers)
        self.batch.reqs = self.batch.reqs + batch.reqs
        if self.lag:
            self.pending[-2:] = [self.pending[-2] + self.pending[-1]]


@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_every_node_is_penalised_as_plain_decoding_would(lag: int, nodes: int) -> None:
    decoding = Decoding(KINDS, lag, seed=10 * nodes + lag)
    for _ in range(6):
        decoding.step(nodes)


@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
def test_requests_come_and_go(lag: int) -> None:
    """Kinds of penalties appear in a batch that had none of them, and go."""
    decoding = Decoding([NONE, KINDS[1]], lag, seed=lag)
    changes: list[int | list[dict[str, float]]] = [[KINDS[5], NONE], 1, [KINDS[3], KINDS[2]], 1, [KINDS[4]], 0]
    for change in changes:
        for nodes in (4, 3):
            decoding.step(nodes)
        if isinstance(change, int):
            decoding.leave(change)
        else:
            decoding.join(change)
    decoding.step(4)


def test_after_a_retraction_all_that_was_answered_counts() -> None:
    from sglang_gemma4.speculative import verify_penalties

    answer = [1, 1, 4, 1]
    reqs = [Request(sampling, output_ids=array("q", answer)) for sampling in KINDS]
    batch = Batch(reqs)
    penalizers = orchestrator(batch)
    verify_penalties.begin(penalizers, batch)
    logits = torch.randn(len(reqs), VOCABULARY, generator=torch.Generator().manual_seed(0))
    found = logits.clone()
    penalizers.apply(found)
    for row, req in enumerate(reqs):
        torch.testing.assert_close(found[row], plain(req, answer, logits[row]))
    verify_penalties.count(penalizers, reqs)
    again = logits.clone()
    penalizers.apply(again)
    assert torch.equal(again, found), "counted once"


def test_tables_that_a_forward_may_read_are_not_written() -> None:
    from sglang_gemma4.speculative import verify_penalties

    batch = Batch([Request(sampling) for sampling in KINDS])
    penalizers = orchestrator(batch)
    verify_penalties.begin(penalizers, batch)
    state = verify_penalties.counted(penalizers, batch.reqs)
    tables = [table for table in (state.frequency, state.presence, state.repetition) if table]
    before = [table.cumulated.clone() for table in tables]
    for req in batch.reqs:
        req.output_ids.append(2)
    verify_penalties.count(penalizers, batch.reqs)
    assert len(tables) == 3
    assert all(torch.equal(table.cumulated, old) for table, old in zip(tables, before, strict=True))
    after = verify_penalties.counted(penalizers, batch.reqs)
    assert after.frequency is not None
    assert not torch.equal(after.frequency.cumulated, before[0])


def test_the_device_is_not_waited_for() -> None:
    """Tensors without data: whatever asks for a value, or for a shape that depends on one, fails."""
    rows, nodes = 3, 4

    def shaped(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    table = Table(shaped(rows, VOCABULARY), shaped(rows, 1))
    integers = shaped(rows, dtype=torch.int64)
    state = Counted(table, table, table, shaped(rows, 1), shaped(rows, VOCABULARY), integers, integers)
    tokens = shaped(rows, nodes, dtype=torch.int64)
    penalise(shaped(rows, nodes, VOCABULARY), tokens, tokens[:, 1:], integers, state)
    assert last_run(tokens, integers, nodes - 1).shape == (rows, nodes - 1)
