"""Probability that the draft token of each position is accepted, estimated from recent verify steps."""

from collections.abc import Sequence


class Acceptance:
    """Decaying counts by draft position: how often it was reached (all before it accepted), and how often it was accepted then.

    The first tokens of a chain do not depend on how many follow, so a step of any draft length updates the positions it has.
    """

    START = 0.7
    """Assumed for the first position before anything was observed; every other position starts from the one before it."""

    FLOOR = 8.0
    """Counts do not decay below this: a phase without drafts keeps the last estimate, and a few new observations can still change it."""

    def __init__(self, positions: int) -> None:
        self._reached = [0.0] * positions
        self._accepted = [0.0] * positions

    def observe(self, accepted: Sequence[int], drafted: int, keep: float) -> None:
        """Add one verify step: accepted draft tokens of each request, out of ``drafted``. Old counts are multiplied by ``keep`` first."""
        for position, reached in enumerate(self._reached):
            if reached > self.FLOOR:
                fade = max(keep, self.FLOOR / reached)
                self._reached[position] *= fade
                self._accepted[position] *= fade
        for position in range(drafted):
            self._reached[position] += sum(count >= position for count in accepted)
            self._accepted[position] += sum(count > position for count in accepted)

    def expected(self, drafted: int) -> float:
        """Expected number of accepted tokens of ``drafted``. Each position gets one assumed observation as a prior."""
        total, chance, likely = 0.0, 1.0, self.START
        for position in range(drafted):
            likely = (self._accepted[position] + likely) / (self._reached[position] + 1.0)
            chance *= likely
            total += chance
        return total
