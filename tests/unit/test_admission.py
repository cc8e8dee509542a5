"""Prompt tokens beside running requests, by times of a made-up card."""

import pytest

from sglang_gemma4.speculative.admission import (
    AGAIN,
    ATTEMPTS,
    FREE,
    LEAST,
    LOOK_EVERY,
    ROOM,
    TOLERANCE,
    TRIED,
    Admission,
    Way,
    in_a_graph,
    ladder,
)
from sglang_gemma4.speculative.beside_bounds import Gap
from sglang_gemma4.speculative.size_times import ENOUGH, OLD, SURE, Times

PLAIN, LAUNCHES, ROW, TOKEN = 0.020, 0.021, 0.00002, 0.00001
"""Seconds of a plain step, of a joined step's launches, of a row of one, of a token of a prefill alone."""
EACH, MOST, WAITING = 4, 8192, 50_000
SIZES = [size for size in ladder(MOST) if size <= 2048]


def joined(rows: int) -> float:
    return max(LAUNCHES, ROW * rows)


class Card:
    """Steps of this card, one after the other."""

    def __init__(self, gap: float | Gap, plain: float = PLAIN, alone: float = 0.015) -> None:
        self.admission, self.now = Admission(Gap(gap) if isinstance(gap, float) else gap), 0.0
        self.seconds_plain, self.seconds_alone = plain, alone
        self.admission.arrived(0, 1, 4, 0.0)

    def step(self, tokens: int, running: int, seconds: float | None = None) -> None:
        rows = tokens + EACH * running
        usual = joined(rows) if tokens and running else self.seconds_plain if running else max(self.seconds_alone, TOKEN * tokens)
        self.now += usual if seconds is None else seconds
        self.admission.arrived(tokens, running, rows, self.now)

    def plain(self, *running: int) -> "Card":
        for requests in running:
            for _ in range(ENOUGH):
                self.step(0, requests)
        return self

    def learn(self, running: int) -> "Card":
        """Prompts come until the sizes are known."""
        for _ in range(10 * ENOUGH):
            tokens = self.admission.tokens(running, EACH, WAITING, MOST, SIZES)
            self.step(tokens, running if self.admission.way(running, EACH, tokens) is Way.BESIDE else 0)
        return self


def test_what_is_tried_first() -> None:
    card = Card(2.0)
    assert card.admission.tokens(80, EACH, 100, MOST, SIZES) == SIZES[-1] - 320, "nothing is known"
    card.plain(80)
    tried = []
    for _ in range(3 * ENOUGH):
        tried.append(card.admission.tokens(80, EACH, WAITING, MOST, SIZES))
        assert card.admission.way(80, EACH, tried[-1]) is Way.BESIDE
        card.step(tried[-1], 80)
    assert tried == [size - 320 for size in TRIED for _ in range(ENOUGH)]
    assert card.admission.way(80, EACH, 704) is Way.TRIED_IN_TURN
    for _ in range(ENOUGH):
        card.step(704, 0)
    assert card.admission.way(80, EACH, 704) is Way.BESIDE
    assert card.admission.tokens(80, EACH, WAITING, 128, SIZES) == 128


@pytest.mark.parametrize(("gap", "rows"), [(1.3, 1024), (1.5, 1536), (1.8, 1536), (3.0, 2048)])
def test_gaps_stay_within_the_operator_s_bound(gap: float, rows: int) -> None:
    card = Card(gap).plain(80).learn(80)
    found = card.admission.tokens(80, EACH, WAITING, MOST, SIZES)
    assert found == rows - 320, "a graph is filled"
    assert joined(rows) <= TOLERANCE * gap * PLAIN


def test_a_size_at_the_bound_is_not_left_out_for_the_noise_of_its_times() -> None:
    """Two plain steps take 40 ms, 2,048 rows 41: a third more prompt tokens a second than 1,536 rows."""
    assert 2.0 * PLAIN < joined(2048) < TOLERANCE * 2.0 * PLAIN
    assert Card(2.0).plain(80).learn(80).admission.tokens(80, EACH, WAITING, MOST, SIZES) == 2048 - 320


@pytest.mark.parametrize(("seconds", "rows"), [(0.0467, 2048), (0.053, 1536)])
def test_of_nearly_equal_rates_the_larger_step_is_taken(seconds: float, rows: int) -> None:
    """1,472 tokens in 32.7 ms are 45 a millisecond, 1,984 in 46.7 are 42: a queue of 80 takes a third more such steps of a few requests."""
    card = Card(3.0, plain=0.0243).plain(80)
    for size, took in ((512, 0.0253), (1024, 0.0260), (1536, 0.0327), (2048, seconds)):
        for _ in range(ENOUGH):
            card.step(size - 16 * EACH, 16, took)
    assert card.admission.tokens(16, EACH, WAITING, MOST, SIZES, joining=64) == rows - 16 * EACH


def test_a_disturbed_small_size_does_not_make_larger_ones_seem_slow() -> None:
    """Steps of some 300 rows took 51 ms while something else held the host, and so had seemed all sizes up to 2,048."""
    times = Times()
    for size, seconds in ((300, 0.051), (1024, 0.030), (2048, 0.045)):
        for _ in range(ENOUGH):
            times.add(size, seconds)
    assert [times.at(size) for size in (300, 1024, 2048)] == [0.030, 0.030, 0.045]


def test_a_small_batch_does_not_hold_up_prompts() -> None:
    """Launches alone exceed the bound: prompts get what takes little longer."""
    card = Card(2.0, plain=0.010).plain(8).learn(8)
    found = card.admission.tokens(8, EACH, WAITING, MOST, SIZES)
    assert joined(LEAST) > 2.0 * 0.010
    assert found == 1024 - 32
    assert joined(1024) <= FREE * joined(LEAST) < joined(1536)


def test_a_few_running_requests_do_not_hold_up_a_queue() -> None:
    """A plain step of 4 takes 9 ms, of the 80 that there will be 26: what they wait for then, they may wait for now."""
    card = Card(2.0)
    for requests, seconds in ((4, 0.009), (80, 0.026)):
        for _ in range(ENOUGH):
            card.step(0, requests, seconds)
    card.learn(4)
    alone, queue = (card.admission.tokens(4, EACH, WAITING, MOST, SIZES, joining) for joining in (1, 76))
    assert (alone, queue) == (1024 - 16, 2048 - 16)


def test_no_more_rows_than_a_graph_has() -> None:
    """Three plain steps are the time of 3,000 rows, but there is no graph of so many; beside 600 requests none has room at all."""
    card = Card(3.0).plain(80).learn(80)
    assert card.admission.tokens(80, EACH, WAITING, MOST, SIZES) == 2048 - 320
    assert card.admission.tokens(600, EACH, WAITING, MOST, SIZES) >= LEAST
    assert in_a_graph(1900, 320, SIZES) == 2048 - 320
    assert in_a_graph(1900, 2400, SIZES) == in_a_graph(1900, 320, ()) == 1900


def test_a_size_whose_first_steps_were_disturbed_is_tried_again_within_the_bound() -> None:
    """2,048 rows seemed to take 90 ms; 1,024 take 21, within two plain steps of 20 ms and not within two of 5."""
    for plain, again in ((PLAIN, True), (0.005, False)):
        card = Card(2.0, plain=plain).plain(80)
        for rows, seconds in ((1024, None), (2048, 0.09), (512, None)):
            for _ in range(ENOUGH):
                card.step(rows - 320, 80, seconds)
        found = []
        for _ in range(AGAIN - 2 * ENOUGH):
            found.append(card.admission.tokens(80, EACH, WAITING, MOST, SIZES))
            card.step(found[-1], 80)
        assert (2048 - 320 in found[:SURE]) is (2048 - 320 in found) is again


def test_a_size_that_waited_for_a_compiler_is_timed_again_at_once() -> None:
    """1,024 and 2,048 rows seemed to take 131 and 133 ms, 512 took 26, as on an H100."""
    card = Card(2.0).plain(8)
    for rows, seconds in ((512, 0.026), (1024, 0.131), (2048, 0.133)):
        for _ in range(ENOUGH):
            card.step(rows - 32, 8, seconds)
    found = []
    for _ in range(6 * ENOUGH):
        found.append(card.admission.tokens(8, EACH, WAITING, MOST, SIZES, joining=72))
        card.step(found[-1], 8, 0.026 if found[-1] <= 480 else 0.038)
    assert {1024 - 32, 2048 - 32} <= set(found)
    assert [card.admission.joined.at(rows) for rows in (1024, 2048)] == pytest.approx([0.038, 0.038])
    assert found[-1] == 2048 - 32


def test_trials_end_though_no_step_is_timed() -> None:
    """Steps with images give no time."""
    card = Card(2.0).plain(80)
    found = [card.admission.tokens(80, EACH, WAITING, MOST, SIZES) for _ in range(ATTEMPTS * len(TRIED) + 1)]
    assert found.count(TRIED[0] - 320) == ATTEMPTS
    assert found[-1] == SIZES[-1] - 320
    assert min(card.admission.tokens(running, EACH, WAITING, MOST, SIZES) for running in range(1, 600)) >= ROOM


def test_small_graphs_do_not_bound_prompts() -> None:
    """31B has graphs of up to 512 rows: beside 112 requests they would leave 64 tokens a step."""
    small = [size for size in SIZES if size <= 512]
    card = Card(2.0)
    for _ in range(10 * ENOUGH):
        card.step(card.admission.tokens(112, EACH, WAITING, MOST, small), 112)
    card.plain(112)
    found = card.admission.tokens(112, EACH, WAITING, MOST, small)
    assert found >= ROOM
    assert joined(found + 4 * 112) <= TOLERANCE * 2.0 * PLAIN
    assert in_a_graph(1900, 448, small) == 1900


def test_steps_in_turn_where_they_take_less_time() -> None:
    for plain, better in ((0.003, Way.IN_TURN), (PLAIN, Way.BESIDE)):  # with 12 ms for such a prefill, and 21 for both
        card = Card(1.2, plain=plain, alone=0.012).plain(8).learn(8)
        assert card.admission.way(8, EACH, card.admission.tokens(8, EACH, WAITING, MOST, SIZES)) is better


def test_a_prefill_in_turn_is_as_long_as_the_bound_allows() -> None:
    card = Card(4.0, plain=0.006, alone=0.005).plain(8).learn(8)
    tokens = card.admission.tokens(8, EACH, WAITING, MOST, SIZES)
    assert card.admission.way(8, EACH, tokens) is Way.IN_TURN
    longest = max(joined(tokens + 8 * EACH), 4.0 * 0.006)
    for size in ladder(MOST)[:-2]:
        card.admission.pause()
        card.step(0, 8)
        for _ in range(ENOUGH):
            card.step(size, 0)
    found = card.admission.in_turn(8, EACH, tokens, MOST)
    assert tokens < found <= MOST
    assert 0.006 + max(0.005, TOKEN * found) <= longest < 0.006 + TOKEN * next(size for size in ladder(MOST) if size > found)
    assert card.admission.in_turn(8, EACH, tokens, tokens) == tokens
    assert Admission(Gap()).in_turn(8, EACH, 64, MOST) == 64, "nothing is known"


@pytest.mark.parametrize(("milliseconds", "rows"), [(10, 2048), (50, 2048), (37, 1536)])
def test_a_time_bounds_gaps_where_plain_steps_are_short(milliseconds: float, rows: int) -> None:
    """With half as long plain steps twice those let 1,024 rows through."""
    plain = 0.010 if milliseconds > 10 else PLAIN
    card = Card(Gap(seconds=milliseconds / 1000), plain=plain).plain(80).learn(80)
    found = card.admission.tokens(80, EACH, WAITING, MOST, SIZES) + EACH * 80
    assert found == rows
    assert joined(rows) <= TOLERANCE * max(milliseconds / 1000, 2 * plain)


@pytest.mark.parametrize(("running", "joining", "most"), [(2, 28, MOST), (15, 15, 6144), (28, 2, 3072), (30, 0, 2048)])
def test_the_more_wait_the_longer_a_few_wait_for_them(running: int, joining: int, most: int) -> None:
    """Prefills in turn bring prompts faster here, the more the larger, and no more of them may wait than the bound lets the others."""
    plain, gap = 0.005, Gap(seconds=0.035, queued=3.0)
    card = Card(gap, plain=plain).plain(running, 30).learn(running)
    for size in ladder(MOST)[:-2]:
        card.admission.pause()
        card.step(0, running)
        for _ in range(ENOUGH):
            card.step(size, 0)
    tokens = card.admission.tokens(running, EACH, WAITING, MOST, SIZES, joining)
    found = card.admission.in_turn(running, EACH, tokens, MOST, joining)
    assert max(tokens + EACH * running, found) == most
    waited = plain + TOKEN * found if found > tokens else joined(tokens + EACH * running)
    assert waited <= TOLERANCE * max(gap.seconds * min(1 + joining / running, 3), joined(tokens + EACH * running) / TOLERANCE)
    hard = Card(Gap(seconds=gap.seconds), plain=plain)
    hard.admission.plain, hard.admission.alone, hard.admission.joined = card.admission.plain, card.admission.alone, card.admission.joined
    assert hard.admission.in_turn(running, EACH, tokens, MOST, joining) <= 3072, "a time that the operator names is for all"


def test_times_of_the_card_are_taken_as_they_are() -> None:
    """Read by the host, a step behind a plain one that took long for its kind is one that was read late."""
    found = {}
    for read_late in (True, False):
        card = Card(2.0)
        card.admission = Admission(Gap(), read_late)
        card.admission.arrived(0, 1, 4, 0.0)
        card.plain(8)
        for _ in range(ENOUGH):
            card.step(0, 8, seconds=PLAIN + 0.010)
            card.step(1024, 0, seconds=0.040)
        found[read_late] = card.admission.alone.at(1024)
    assert found == {True: pytest.approx(0.050), False: pytest.approx(0.040)}


@pytest.mark.parametrize(("gap", "waiting", "better"), [(2.0, WAITING, Way.BESIDE), (6.0, WAITING, Way.IN_TURN), (6.0, 2048, Way.BESIDE)])
def test_a_larger_prefill_goes_in_turn_where_the_operator_lets_it(gap: float, waiting: int, better: Way) -> None:
    """Beside 80 requests whose steps take 30 ms go 1,728 tokens in 41 ms; 8,192 tokens alone take 82, a graph's 2,048 with them 51."""
    card = Card(gap, plain=0.030).plain(80).learn(80)
    tokens = card.admission.tokens(80, EACH, waiting, MOST, SIZES)
    for _ in range(ENOUGH):
        card.step(tokens, 0)
    assert tokens == 2048 - 320
    assert card.admission.alone.points()[-1][0] <= 2048, "nothing larger was timed"
    assert card.admission.way(80, EACH, tokens, min(MOST, waiting)) is better
    found = card.admission.in_turn(80, EACH, tokens, MOST)
    assert (gap == 6.0) == (found == MOST)
    assert 0.030 + TOKEN * found <= max(gap * 0.030, joined(2048))


def test_a_step_whose_result_was_read_late_does_not_shorten_the_next_one() -> None:
    """A prefill's launches take longer than the plain step before it, whose result is read after them."""
    card = Card(2.0).plain(8)
    for _ in range(ENOUGH):
        card.step(0, 8)
        card.step(0, 8, seconds=PLAIN + 0.05)
        card.step(8192, 0, seconds=0.08 - 0.05)
    assert card.admission.alone.at(8192) == pytest.approx(0.08)
    assert card.admission.plain.at(8) == pytest.approx(PLAIN)


def test_stalls_and_pauses_change_nothing() -> None:
    card = Card(2.0).plain(80).learn(80)
    before = card.admission.tokens(80, EACH, WAITING, MOST, SIZES)
    card.step(1024 - 320, 80, seconds=1e6)
    card.admission.pause()
    card.step(1536 - 320, 80, seconds=1e6)
    assert card.admission.tokens(80, EACH, WAITING, MOST, SIZES) == before


def test_what_was_disturbed_at_first_is_timed_anew() -> None:
    """Joined steps that waited for a compiler make prefills in turn look better, but not for ever."""
    card = Card(2.0).plain(8)
    for _ in range(ENOUGH):
        card.step(992, 8, seconds=0.5)
    for _ in range(ENOUGH):
        card.step(992, 0)
    assert card.admission.way(8, EACH, 992) is Way.IN_TURN
    for _ in range(OLD):
        card.step(0, 8)
    assert card.admission.way(8, EACH, 992) is Way.BESIDE, "tried again"
    for _ in range(ENOUGH):
        card.step(992, 8)
    assert card.admission.way(8, EACH, 992) is Way.TRIED_IN_TURN
    for _ in range(ENOUGH):
        card.step(992, 0)
    assert card.admission.way(8, EACH, 992) is Way.BESIDE


def test_a_plain_step_is_timed_now_and_then_until_it_is_known() -> None:
    card = Card(2.0).plain(8)
    looks = []
    for _ in range(4 * (LOOK_EVERY + 1)):
        looks.append(card.admission.looks(80))
        card.step(0 if looks[-1] else 700, 80)
    assert [step for step, look in enumerate(looks) if look] == [LOOK_EVERY + (LOOK_EVERY + 1) * n for n in range(ENOUGH)]


def test_a_few_tokens_wait_for_others_but_not_long() -> None:
    card = Card(4.0).plain(80).learn(80)

    def holds(requests: int, waiting: int, now: float, running: int = 80) -> bool:
        return card.admission.holds(running, EACH, requests, waiting, MOST, now)

    held = [holds(1, LEAST, PLAIN * step) for step in range(6)]
    assert held[0], "one empty place of 80 costs less than a step's launches"
    assert not all(held[:4]), "gap - 1 plain steps are the longest"
    assert not holds(1, 3000, 1.0), "enough for a step"
    assert not holds(2, LEAST, 2.0, running=2), "all places are empty"
    assert not holds(0, 0, 3.0)


def test_sizes_of_one_key() -> None:
    times = Times()
    for first, last in ((513, 768), (769, 1024), (1025, 1536)):
        assert len({times._key(size) for size in (first, last)}) == 1
    assert len({times._key(size) for size in ladder(2048)}) == len(ladder(2048))
    assert "mixed batches by rows: 1024: 21.0" in str(Card(2.0).plain(80).learn(80).admission).replace("512: 21.0, ", "")
