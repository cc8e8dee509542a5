"""How likely the draft token of each position is accepted, from what was accepted lately."""

from collections.abc import Sequence


class Acceptance:
    """Fading counts by draft position: how often it was reached (those before it accepted), and how often accepted then.

    A chain's first tokens do not depend on how many follow, so every draft length teaches the positions it has.
    """

    START = 0.7
    """Assumed for the first position before anything is known; every other position starts from the one before it."""

    FLOOR = 8.0
    """Counts fade no further than this, so that a time without drafts leaves the last estimate, ready to give way to a few new ones."""

    def __init__(self, positions: int) -> None:
        self._reached = [0.0] * positions
        self._accepted = [0.0] * positions

    def observe(self, accepted: Sequence[int], drafted: int, keep: float) -> None:
        """One verify step: accepted draft tokens by request, of ``drafted`` each. Old counts are multiplied by ``keep`` first."""
        for position, reached in enumerate(self._reached):
            if reached > self.FLOOR:
                fade = max(keep, self.FLOOR / reached)
                self._reached[position] *= fade
                self._accepted[position] *= fade
        for position in range(drafted):
            self._reached[position] += sum(count >= position for count in accepted)
            self._accepted[position] += sum(count > position for count in accepted)

    def expected(self, drafted: int) -> float:
        """Accepted tokens of a draft of ``drafted``. In each position one assumed observation is mixed in."""
        total, chance, likely = 0.0, 1.0, self.START
        for position in range(drafted):
            likely = (self._accepted[position] + likely) / (self._reached[position] + 1.0)
            chance *= likely
            total += chance
        return total
