"""The choice of the draft length against simulated servers: what it converges to, what it may cost, what it follows."""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sglang_gemma4.speculative.acceptance import Acceptance
from sglang_gemma4.speculative.draft_length import DraftLength, Rules
from sglang_gemma4.speculative.step_costs import StepCosts

# Stock 26B-A4B on one H200, ms a step by batch size (runs/2026-11-21-26b-stock-steps): plain decoding, and MTP with 3 steps at a simulated
# accept length of 2.8. What 1 and 5 steps take was not measured: straight lines through the two.
PLAIN = {1: 4.43, 8: 8.55, 32: 15.3, 64: 18.6}
MTP = {1: 12.2, 8: 19.2, 32: 35.5, 64: 55.9}
LIKELY = 0.766
"""Of each draft token; 1 + p + p² + p³ = 2.80 tokens a verify step."""
CANDIDATES = (0, 1, 3, 5)


def milliseconds(batch: int, steps: int) -> float:
    return PLAIN[batch] + (MTP[batch] - PLAIN[batch]) * (steps + 1) / 4 if steps else PLAIN[batch]


def tokens_per_step(steps: int, likely: float) -> float:
    return sum(likely**position for position in range(steps + 1))


@dataclass
class Server:
    """Decodes one batch without end. Times jitter by 3%, every hundredth step stalls, every 20th follows a prefill.

    ``late`` results are under way when the next step is launched: 0 without overlap scheduling, 1 with it. The first four steps of each
    length take ``compile`` milliseconds longer.
    """

    batch: int
    cost: Callable[[int, int], float] = milliseconds
    likely: float = LIKELY
    late: int = 0
    compile: float = 0.0
    candidates: tuple[int, ...] = CANDIDATES
    seed: int = 0
    chosen: list[int] = field(default_factory=list)
    spent: float = 0.0
    plain: float = 0.0
    """Milliseconds spent, and those that plain decoding would have taken for the same tokens; both without jitter, stalls and prefills."""

    def __post_init__(self) -> None:
        self.length = DraftLength(3)
        self.random = random.Random(self.seed)
        self.clock = 0.0
        self.used: Counter[int] = Counter()
        self.under_way: deque[tuple[int, float]] = deque()  # draft steps, and ms of the prefill that runs before

    def run(self, launches: int) -> None:
        for _ in range(launches):
            prefill = 500.0 if self.random.random() < 0.05 else 0.0
            if prefill:
                self.length.prefill()
            self.chosen.append(self.length.launch(self.batch, self.candidates))
            self.under_way.append((self.chosen[-1], prefill))
            if len(self.under_way) > self.late:
                self.finish(*self.under_way.popleft())

    def finish(self, steps: int, prefill: float) -> None:
        accepted = [0] * self.batch
        for request in range(self.batch):
            while accepted[request] < steps and self.random.random() < self.likely:
                accepted[request] += 1
        took = self.cost(self.batch, steps)
        self.spent += took
        self.plain += self.cost(self.batch, 0) * (1 + sum(accepted) / self.batch)
        self.used[steps] += 1
        if self.used[steps] <= 4:
            self.clock += self.compile
        self.clock += prefill + took * self.random.gauss(1.0, 0.03) * (5.0 if self.random.random() < 0.01 else 1.0)
        assert self.length.arrived(accepted, self.clock / 1000)

    def share(self, last: int, steps: int) -> float:
        """Of the last launches, how many drafted that much."""
        return self.chosen[-last:].count(steps) / last

    def bound(self) -> float:
        """What may be spent: Rules.share over plain decoding, the purse, and two steps of the longest draft that were under way."""
        rules = Rules()
        slack = rules.purse * self.cost(self.batch, 0) + 2 * self.cost(self.batch, max(self.candidates))
        return (1 + rules.share) * self.plain + slack


def best(batch: int, likely: float, cost: Callable[[int, int], float] = milliseconds) -> dict[int, float]:
    """Tokens a second of each candidate, relative to the best."""
    rates = {k: tokens_per_step(k, likely) / cost(batch, k) for k in CANDIDATES}
    return {k: rate / max(rates.values()) for k, rate in rates.items()}


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("likely", [0.2, 0.5, LIKELY, 0.95])
@pytest.mark.parametrize("batch", [1, 8, 32, 64])
def test_it_settles_on_the_fastest_length_and_never_loses_three_percent(batch: int, likely: float, late: int) -> None:
    server = Server(batch, likely=likely, late=late)
    server.run(600)
    server.run(5400)
    within = {k for k, rate in best(batch, likely).items() if rate > 0.94}  # margin and noise
    assert sum(server.share(5000, k) for k in within) > 0.9, (best(batch, likely), [server.share(5000, k) for k in CANDIDATES])
    assert server.spent <= server.bound()
    assert server.spent <= 1.03 * server.plain


def test_known_best_lengths_on_the_stock_h200() -> None:
    assert max(best(8, LIKELY), key=best(8, LIKELY).__getitem__) in (3, 5)
    assert best(8, LIKELY)[0] < 0.9
    assert best(64, LIKELY)[0] == 1.0
    assert best(1, LIKELY)[0] > 0.95


def test_it_settles_within_two_hundred_steps() -> None:
    for seed in range(10):
        fast, full = Server(8, seed=seed), Server(64, seed=seed)
        fast.run(400)
        full.run(400)
        assert fast.share(200, 3) + fast.share(200, 5) > 0.85
        assert full.share(200, 0) > 0.85


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_where_every_draft_is_refused(seed: int) -> None:
    server = Server(64, likely=0.0, seed=seed, late=1)
    for _ in range(20):
        server.run(500)
        assert server.spent <= server.bound()
    assert 0.0 < server.spent / server.plain - 1 < 0.03


@pytest.mark.parametrize("batch", [1, 64])
def test_the_bound_holds_where_acceptance_turns_against_every_choice(batch: int) -> None:
    """Drafts are accepted while it decodes plainly, and refused as soon as it drafts in earnest."""
    server = Server(batch)
    for _ in range(20000):
        server.likely = (
            0.95 if next(iter(server.length.choices.values()), None) is None or not server.chosen or in_use(server) == 0 else 0.0
        )
        server.run(1)
    assert any(steps > 0 for steps in server.chosen[-5000:])
    assert server.spent <= server.bound()
    assert server.spent <= 1.03 * server.plain


def in_use(server: Server) -> int:
    return next(iter(server.length.choices.values())).current


@pytest.mark.parametrize("compile", [30.0, 300.0])
@pytest.mark.parametrize("likely", [0.0, LIKELY])
@pytest.mark.parametrize("late", [0, 1])
def test_first_uses_that_compile_kernels_mislead_nobody(late: int, likely: float, compile: float) -> None:
    """As on the H200, where the first plain steps took 80 ms, drafting looked twelve times as fast, and stayed: 6.5 ms a token, not 3.7."""
    for seed in range(5):
        server = Server(1, cost=milliseconds_now, likely=likely, late=late, compile=compile, seed=seed)
        server.run(500)
        wanted = (0,) if likely == 0.0 else (3, 5)
        assert sum(server.share(250, k) for k in wanted) > 0.8, (seed, [server.share(250, k) for k in CANDIDATES])
        assert server.spent <= server.bound()


def milliseconds_now(batch: int, steps: int) -> float:
    """What the package's steps take at batch 1 (runs/2026-11-22-26b-mtp-steps); a straight line through 0 and 3 draft steps."""
    return {1: 3.75 + (6.2 - 3.75) * steps / 3}[batch]


def test_a_stalled_trial_is_made_again() -> None:
    costs = StepCosts(9)
    for _ in range(9):
        costs.in_use(0, 0.010)
    assert costs.tried(3, [0.020] * 4)
    assert not costs.tried(3, [0.100] * 4)
    assert costs.ratio[3] == pytest.approx(2.0), "not believed at once"
    assert costs.tried(3, [0.022] * 4)
    assert costs.ratio[3] == pytest.approx(2.1), "it was a stall"
    assert not costs.tried(3, [0.050] * 4)
    assert costs.tried(3, [0.046] * 4)
    assert costs.ratio[3] == pytest.approx(4.6), "found twice"


def test_a_change_of_acceptance_is_followed() -> None:
    server = Server(8, likely=0.1)
    server.run(1500)
    assert server.share(500, 0) > 0.9
    server.likely = 0.9
    server.run(1500)
    assert server.share(300, 3) + server.share(300, 5) > 0.9
    server.likely = 0.1
    server.run(300)
    assert server.share(150, 0) > 0.85


def test_a_growing_context_that_makes_drafts_dear_is_followed() -> None:
    server = Server(8)
    server.run(800)
    assert in_use(server) > 0
    server.cost = lambda batch, steps: milliseconds(batch, steps) + 12.0 * steps  # a verify step reads the context's KV several times
    server.run(2500)
    assert server.share(500, 0) > 0.9


def test_batch_sizes_have_choices_of_their_own() -> None:
    length, chosen = DraftLength(3), []
    for step, batch in enumerate([1, 2, 3, 4, 5, 8, 9, 64]):
        chosen.append(length.launch(batch, (0, 3)))
        assert length.arrived([0] * batch, float(step))
    assert sorted(ceiling for ceiling, _ in length.choices) == [1, 2, 4, 8, 16, 64]
    assert set(chosen) == {0}, "nothing was timed yet"


def test_one_candidate_is_used() -> None:
    for only in ((0,), (1,), (3,)):
        server = Server(8, candidates=only)
        server.run(50)
        assert set(server.chosen) == set(only)


def test_without_plain_decoding_the_fastest_draft_is_used() -> None:
    server = Server(8, likely=0.2, candidates=(1, 3, 5))
    server.run(1000)
    assert server.share(300, 1) > 0.9


def test_a_result_out_of_step_is_said_and_forgotten() -> None:
    length = DraftLength(3)
    assert not length.arrived([1], 0.0)
    length.launch(2, (0, 3))
    assert not length.arrived([0], 0.1)
    length.launch(2, (0, 3))
    assert length.arrived([0, 0], 0.2)


def test_steps_beside_a_prefill_are_not_timed() -> None:
    length = DraftLength(3)
    for step in range(100):
        length.prefill()
        assert length.launch(4, (0, 3)) == 0
        length.arrived([0] * 4, float(step))
    assert not next(iter(length.choices.values())).costs.ratio


def test_acceptance_by_position() -> None:
    acceptance = Acceptance(3)
    rng = random.Random(1)
    for _ in range(400):
        accepted = 0
        for likely in (0.9, 0.5, 0.1):
            if rng.random() > likely:
                break
            accepted += 1
        acceptance.observe([accepted], 3, 0.995)
    assert acceptance.expected(0) == 0.0
    assert acceptance.expected(1) == pytest.approx(0.9, abs=0.05)
    assert acceptance.expected(2) - acceptance.expected(1) == pytest.approx(0.45, abs=0.1)
    assert acceptance.expected(3) - acceptance.expected(2) == pytest.approx(0.045, abs=0.04)


def test_acceptance_outlasts_a_time_without_drafts_and_then_gives_way() -> None:
    acceptance = Acceptance(1)
    for _ in range(300):
        acceptance.observe([1], 1, 0.99)
    for _ in range(5000):
        acceptance.observe([0], 0, 0.99)
    assert acceptance.expected(1) > 0.95
    for _ in range(16):
        acceptance.observe([0], 1, 0.99)
    assert acceptance.expected(1) < 0.45
