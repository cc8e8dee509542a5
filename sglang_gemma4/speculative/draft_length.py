"""How many tokens to draft before each verify step: the number that yields the most tokens per second.

For every range of batch sizes (:class:`Choice`) two things are measured while decoding: the probability that the
draft token of a position is accepted if those before it were (``acceptance``), and the relative cost of a step with k
draft tokens (``step_costs``). The chosen k has the largest (1 + expected accepted tokens) / step time; k = 0 is plain
decoding.

Measurements of lengths that are not in use get stale, so another k is tried now and then for a few steps. Trials and
wrong choices are paid from a time budget (:class:`Purse`). It grows by a share of the time that plain decoding would
have taken, and shrinks by the extra time of speculation. With an empty budget decoding is plain. So in any run, and
in each range of batch sizes, speculation takes at most ``Rules.share`` longer than plain decoding, plus
``Rules.purse`` plain steps, plus the steps in flight when the budget became empty.

Pure Python: lengths, counts and seconds in, a length out. Nothing here waits for a device or reads a clock.
"""

import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang_gemma4.speculative.acceptance import Acceptance
from sglang_gemma4.speculative.step_costs import Purse, StepCosts

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rules:
    """The constants of the choice.

    Attributes:
        share: fraction of plain decoding's time that losses and trials may cost in the long run.
        purse: plain steps that the full purse holds; it starts full.
        margin: how much faster another length must be than the one in use; 0 for going back to plain decoding.
        evidence: steps, counted per request, after which an observation has weight 1/e; at least ``fewest_steps`` steps.
        trial_requests: steps, counted per request, that a trial takes; at least ``trial_steps`` steps.
        calm, rest: steps between trials after a change, and at most when nothing changes.
        samples: step times whose median is the current time of a step.
        first_uses: steps of a new length that are not timed, because kernels are compiled in them.
    """

    share: float = 0.01
    purse: float = 32.0
    margin: float = 0.03
    evidence: float = 256.0
    fewest_steps: float = 32.0
    trial_requests: int = 16
    trial_steps: int = 5
    calm: int = 32
    rest: int = 1024
    samples: int = 9
    first_uses: int = 4


@dataclass
class Trial:
    """A few steps with another length than the one in use."""

    steps: int
    length: int
    launched: int = 0
    seen: int = 0
    untimed: int = 0
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Launch:
    """One decode step in flight: what was decided for it, and whether no prefill was launched since the decode step before it."""

    choice: "Choice"
    batch: int
    steps: int
    trial: Trial | None
    undisturbed: bool


class Choice:
    """The draft length of one range of batch sizes.

    Args:
        candidates: lengths to choose from, ascending; 0 is plain decoding.
        first: the candidate to try first; the one in use until the first trial where plain decoding is no candidate.
        batch: the largest batch size of the range.
    """

    def __init__(self, candidates: Sequence[int], first: int, batch: int, rules: Rules) -> None:
        self.candidates, self.batch, self.rules = tuple(candidates), batch, rules
        self.plain = candidates[0] == 0
        self.current = 0 if self.plain else first
        self.acceptance = Acceptance(max(candidates))
        self.costs = StepCosts(rules.samples)
        self.purse = Purse(rules.share, rules.purse, rules.purse)
        self.trial: Trial | None = None
        self._unpaid: list[tuple[int, float]] = []  # (draft length, tokens per request) of steps whose cost is not known yet
        self._untimed = sorted((k for k in candidates if k != self.current), key=lambda k: (k != first, k))
        self._timed: deque[int] = deque()  # lengths not in use, least recently tried first
        # The length in use is timed first: the others are measured against it.
        self._wait, self._next_wait = rules.first_uses + rules.samples + 1, rules.calm

    def rate(self, steps: int) -> float:
        """Expected tokens per request and unit of time; 0 for a length that was never timed."""
        ratio = self.costs.ratio.get(steps)
        return 0.0 if ratio is None else (1.0 + self.acceptance.expected(steps)) / ratio

    def launch(self, batch: int, undisturbed: bool) -> Launch:
        """Decide the next step."""
        if self.trial is not None and self._broke:
            self._cut_short(self.trial)
        if self.trial is None:
            self._decide()
            self._wait -= 1
            if self._wait <= 0:
                self.trial = self._begin(batch)
        trial = self.trial
        if trial is None or trial.launched == trial.length:  # the last steps of a trial may still be under way
            return Launch(self, batch, self.current, None, undisturbed)
        trial.launched += 1
        return Launch(self, batch, trial.steps, trial, undisturbed)

    def arrived(self, launch: Launch, accepted: Sequence[int], seconds: float | None) -> None:
        """Record the result of a step.

        Args:
            accepted: draft tokens accepted, by request.
            seconds: what the step took, or None where something else ran beside it.
        """
        steps, trial = launch.steps, launch.trial
        memory = max(self.rules.fewest_steps, self.rules.evidence / len(accepted))
        self.acceptance.observe(accepted, steps, math.exp(-1.0 / memory))
        if trial is not None and trial.seen < trial.untimed:
            seconds = None
        if seconds is not None and trial is not None:
            trial.seconds.append(seconds)
        elif seconds is not None and steps == self.current:
            self.costs.in_use(steps, seconds)
        self._pay(steps, 1.0 + sum(accepted) / len(accepted), seconds)
        if trial is not None:
            trial.seen += 1
            if trial is self.trial and trial.seen == trial.length:
                self._end(trial)

    @property
    def _broke(self) -> bool:
        return self.plain and self.purse.left <= 0.0

    def _pay(self, steps: int, tokens: float, seconds: float | None) -> None:
        """Charge a step to the budget. A step counts at most twice its usual time, so that stalls are not blamed on
        the draft."""
        if not self.plain or 0 not in self.costs.ratio:
            return
        took = usual = self.costs.times_plain(steps)
        if seconds is not None and steps > 0:
            took = seconds / self.costs.seconds(0)
            took = took if usual is None else min(took, 2.0 * usual)
        if took is None:
            self._unpaid.append((steps, tokens))
        else:
            self.purse.settle(tokens, took)

    def _decide(self) -> None:
        """Switch to another length if it is faster by the margin."""
        if self.current not in self.costs.ratio:
            return
        now = self.rate(self.current)
        if self.current > 0 and (self._broke or self.rate(0) > now):
            self._use(0)
        elif self.current > 0 or self.purse.left >= self.rules.purse / 2:
            best = max(self.candidates, key=self.rate)
            if self.rate(best) > (1.0 + self.rules.margin) * now:
                self._use(best)

    def _use(self, steps: int) -> None:
        now = self.rate(self.current)
        rates = ", ".join(f"{k}: {self.rate(k) / now:.2f}" for k in self.candidates if k in self.costs.ratio)
        logger.info(
            "sglang-gemma4: batches up to %d: draft steps %d -> %d (tokens/s by steps, relative: %s)",
            *(self.batch, self.current, steps, rates),
        )
        self._timed.remove(steps)
        self._timed.append(self.current)
        self.current = steps
        self._wait, self._next_wait = self.rules.calm, 2 * self.rules.calm

    def _begin(self, batch: int) -> Trial | None:
        """The next trial, or None if no length is worth one or the budget cannot pay for it."""
        self._wait = 1
        if self.current not in self.costs.ratio:
            return None
        steps = next(iter([*self._hopeful(), *self._timed]), None)
        if steps is None:
            return None
        length = max(self.rules.trial_steps, math.ceil(self.rules.trial_requests / batch) + 1 if steps > 0 else 0)
        untimed = self.rules.first_uses if steps in self._untimed else 0
        length += untimed
        if self.plain:
            ratio = self.costs.ratio
            worst = ratio.get(steps, max(ratio.values())) / ratio[0] - 1.0  # plain steps lost by a step without accepted tokens
            if self.purse.left < min(self.rules.purse, worst * length):
                return None
        return Trial(steps, length, untimed=untimed)

    def _hopeful(self) -> list[int]:
        """Untimed lengths that would win if all drafts were accepted in the time of the next shorter timed length."""
        now, ratio = self.rate(self.current), self.costs.ratio
        best_case = {k: (1.0 + k) / max((ratio[n] for n in ratio if n < k), default=math.ulp(0.0)) for k in self._untimed}
        return [k for k in self._untimed if best_case[k] > now]

    def _cut_short(self, trial: Trial) -> None:
        trial.length = trial.launched
        if trial.seen == trial.length:
            self._end(trial)

    def _end(self, trial: Trial) -> None:
        self.trial, self._wait = None, 1
        if len(trial.seconds) < 2:
            return  # other work ran in between; try again
        sure = self.costs.tried(trial.steps, trial.seconds)
        unpaid, self._unpaid = self._unpaid, []
        for steps, tokens in unpaid:
            self._pay(steps, tokens, None)
        for lengths in (self._untimed, self._timed):
            if trial.steps in lengths:
                lengths.remove(trial.steps)
        if not sure:
            self._timed.appendleft(trial.steps)
            return
        self._timed.append(trial.steps)
        if not self._hopeful():
            self._wait, self._next_wait = self._next_wait, min(2 * self._next_wait, self.rules.rest)


class DraftLength:
    """Chooses the draft length of every decode step, and learns from each when its result arrives.

    Several steps may be in flight (overlap scheduling); results arrive in launch order. A step's time is the time since the result
    before it, if both have the same choice and length and no prefill was launched between them.

    Args:
        first: the server's initial draft length; the candidate nearest to it is tried first.
    """

    def __init__(self, first: int, rules: Rules | None = None) -> None:
        self.first = first
        self.rules = rules or Rules()
        self.choices: dict[tuple[int, tuple[int, ...]], Choice] = {}
        self._under_way: deque[Launch] = deque()
        self._prefilled = True
        self._last: Launch | None = None
        self._last_time = 0.0

    def launch(self, batch: int, candidates: Sequence[int]) -> int:
        """The draft length for a decode step of ``batch`` requests (at least 1), out of ``candidates``, ascending."""
        ceiling = 1 << (batch - 1).bit_length()
        key = (ceiling, tuple(candidates))
        if key not in self.choices:
            first = min(candidates, key=lambda k: (abs(k - self.first), k))
            self.choices[key] = Choice(candidates, first, ceiling, self.rules)
        launch = self.choices[key].launch(batch, not self._prefilled)
        self._prefilled = False
        self._under_way.append(launch)
        return launch.steps

    def prefill(self) -> None:
        """A prefill was launched: the next decode step is not timed."""
        self._prefilled = True

    def arrived(self, accepted: Sequence[int], now: float) -> bool:
        """Record the result of the oldest step in flight: accepted draft tokens of each request, and the time in seconds.

        Returns:
            False if the number of requests differs from that step's; all steps in flight are then dropped.
        """
        if not self._under_way or self._under_way[0].batch != len(accepted):
            self._under_way.clear()
            self._last = None
            return False
        launch = self._under_way.popleft()
        last, self._last = self._last, launch
        alike = last is not None and launch.undisturbed and last.choice is launch.choice and last.steps == launch.steps
        seconds = now - self._last_time if alike else None
        self._last_time = now
        launch.choice.arrived(launch, accepted, seconds)
        return True
