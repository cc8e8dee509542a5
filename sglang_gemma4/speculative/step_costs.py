"""What decode steps with different draft lengths cost, relative to each other and in time lost against plain decoding."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

SURPRISE = 1.5
"""A ratio this much larger or smaller than the one before is not believed until a second trial has found it too."""


class StepCosts:
    """Time of a step by draft length: how long the length in use takes now, and how the others compare.

    Contexts grow and batches shrink within a range, and all lengths follow; so a trial is compared with the steps right before it,
    and what is kept is the ratio.

    Args:
        samples: step times whose median is the current time of a step.
    """

    def __init__(self, samples: int) -> None:
        self.ratio: dict[int, float] = {}
        self.unit = 0.0
        self._recent: deque[float] = deque(maxlen=samples)
        self._doubted: dict[int, float] = {}

    def seconds(self, steps: int) -> float:
        """Of one step with ``steps`` draft tokens.

        Raises:
            KeyError: that length was never timed.
        """
        return self.unit * self.ratio[steps]

    def in_use(self, steps: int, seconds: float) -> None:
        """A step of the length in use."""
        self._recent.append(seconds / self.ratio.setdefault(steps, 1.0))
        self.unit = median(self._recent)

    def tried(self, steps: int, seconds: Sequence[float]) -> bool:
        """The steps of a trial; half of an earlier ratio is kept against noise.

        Returns:
            False where they are too far from the earlier ratio to be believed at once: the trial is to be made again. Of two such trials
            the smaller ratio counts, since what a server stops for now and then only lengthens steps.
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

    def times_plain(self, steps: int, default: float | None = None) -> float | None:
        """Steps of plain decoding in the time of one step; ``default`` for a length that was never timed."""
        return self.ratio[steps] / self.ratio[0] if steps in self.ratio else default


@dataclass
class Purse:
    """Time that may still be lost against plain decoding, in plain steps; never more than ``full``."""

    share: float
    full: float
    left: float

    def settle(self, plain_steps: float, took: float) -> None:
        """One step: the tokens of ``plain_steps`` plain steps came in the time of ``took`` of them."""
        self.left = min(self.full, self.left + self.share * plain_steps + plain_steps - took)
