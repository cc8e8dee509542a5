"""Batch sizes of decode graphs for a model with experts, chosen by what padding costs a step.

A batch between two captured sizes is computed as the larger one. The padding rows hold tokens of earlier steps, which
are routed like any others, so they read experts that no request needs. Few tokens read few experts, so padding is
expensive for small batches. Without speculation, where a request is one token, it is expensive up to larger batches.
The cost of a step is fitted to a run, and only its proportions matter.
"""

from dataclasses import dataclass

TOLERANCE = 0.02
"""Share of a step that padding may add."""
MOST_SIZES = 64
"""Most sizes captured; the tolerance grows until they suffice. Each costs the start a few forwards, and memory."""
FIXED, DRAFT, ALL_EXPERTS, ROW = 2.2, 1.1, 10.0, 0.041
"""Milliseconds of a step of 26B-A4B on an H200 after 700 tokens of context, in four parts.

These are: without rows, for drafting 3 tokens, for reading all experts, and for each row. They are fitted to
``runs/2026-11-23-26b-steps-and-floor``, within 12 % of its times at batch 1 to 80, with MTP and without.
"""
ROWS = (16, 32, 192, 320)
"""(Padded) rows at which kernels end; no batch is padded past one.

Few-token experts, routing and small-M GEMMs end at 16, narrow GEMMs at 32, experts in blocks of 16 rows at 192. The
kernel of ``grouped_experts`` and the dense FFN in parallel with experts end at 320.
"""
REQUESTS = (16, 32, 64)
"""The same for the draft, which has one row per request: small-M GEMMs, and two tiles of its head."""


@dataclass(frozen=True)
class Step:
    """What determines the cost of a step.

    Args:
        experts: number of experts of a layer, of which each token chooses ``chosen``.
        rows: tokens of a request in a step: 1, or the draft tokens of a verify step.
    """

    experts: int
    chosen: int
    rows: int

    def cost(self, batch: int) -> float:
        """Cost of a step for ``batch`` requests, in the unit of :data:`ROW`, if tokens choose experts at random."""
        rows = batch * self.rows
        read = 1 - (1 - self.chosen / self.experts) ** rows
        return FIXED + DRAFT * (self.rows > 1) + ALL_EXPERTS * read + ROW * rows

    def edges(self) -> set[int]:
        """Batch sizes after which kernels change."""
        return {rows // self.rows for rows in ROWS if rows >= self.rows} | set(REQUESTS)


def sizes(step: Step, largest: int, tolerance: float = TOLERANCE, most: int = MOST_SIZES) -> list[int]:
    """Captured sizes up to ``largest``, ascending: the fewest for which padding adds at most ``tolerance`` to a step.

    If more than ``most`` sizes were needed, the tolerance grows.
    Raises:
        ValueError: ``largest`` is less than 1, or ``most`` less than the edges need.
    """
    edges = {edge for edge in step.edges() if edge < largest} | {largest}
    if largest < 1 or most < len(edges):
        raise ValueError(f"{most} sizes up to a batch of {largest}; give at least {len(edges)} sizes up to a batch of 1 or more")
    while True:
        found = [0]
        while found[-1] < largest:
            size = found[-1] + 1
            may_cost = step.cost(size) * (1 + tolerance)
            while size not in edges and step.cost(size + 1) <= may_cost:
                size += 1
            found.append(size)
        if len(found) - 1 <= most:
            return found[1:]
        tolerance *= 1.1
