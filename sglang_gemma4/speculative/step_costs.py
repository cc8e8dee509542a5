"""Costs of decode steps by draft length, relative to each other, and the time lost against plain decoding."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

SURPRISE = 1.5
"""A ratio that changes by more than this factor is used only after a second trial has confirmed it."""


class StepCosts:
    """Time of a step by draft length: the current time of the length in use, and the ratios of the others to it.

    Contexts grow and batches shrink, which changes the times of all lengths alike. So a trial is compared with the steps right before it,
    and only the ratio is kept.

    Args:
        samples: step times whose median is the current time of a step.
    """

    def __init__(self, samples: int) -> None:
        self.ratio: dict[int, float] = {}
        self.unit = 0.0
        self._recent: deque[float] = deque(maxlen=samples)
        self._doubted: dict[int, float] = {}

    def seconds(self, steps: int) -> float:
        """Current time of a step with ``steps`` draft tokens.

        Raises:
            KeyError: that length was never timed.
        """
        return self.unit * self.ratio[steps]

    def in_use(self, steps: int, seconds: float) -> None:
        """Record a step of the length in use."""
        self._recent.append(seconds / self.ratio.setdefault(steps, 1.0))
        self.unit = median(self._recent)

    def tried(self, steps: int, seconds: Sequence[float]) -> bool:
        """Record the steps of a trial; the new ratio is averaged with the old one.

        Returns:
            False if they are too far from the old ratio (:data:`SURPRISE`): the trial has to be repeated. Of two such trials the smaller
            ratio is taken, because stalls only lengthen steps.
        """
        new, old = median(seconds) / self.unit, self.ratio.get(steps)
        doubted = self._doubted.pop(steps, None)
        if old is None:
            self.ratio[steps] = new
        elif 1.0 / SURPRISE <= new / old <= SURPRISE:
            self.ratio[steps] = (new + old) / 2
        elif doubted is None:
            self._doubted[steps] = new
            return False
        else:
            self.ratio[steps] = min(new, doubted)
        return True

    def times_plain(self, steps: int) -> float | None:
        """Steps of plain decoding in the time of one step; None for a length that was never timed."""
        return self.ratio[steps] / self.ratio[0] if steps in self.ratio else None


@dataclass
class Purse:
    """Time that may still be lost against plain decoding, in plain steps; never more than ``full``."""

    share: float
    full: float
    left: float

    def settle(self, plain_steps: float, took: float) -> None:
        """Charge one step, which yielded the tokens of ``plain_steps`` plain steps in the time of ``took`` plain steps."""
        self.left = min(self.full, self.left + self.share * plain_steps + plain_steps - took)
