"""A budget for all the work that the JSON schemas of one request cause.

A step is about a microsecond of Python: a keyword read, a value compared, an item of a grammar written. Steps are counted, not timed, so
that the same schema is served or refused on every machine.
"""

from dataclasses import dataclass, field

GRAMMAR = 200_000
"""Steps for the grammar of one request's tools."""
PARSER = 50_000
"""Steps for reading the schemas of one answer's calls, which happens on the event loop."""


class TooMuchWorkError(ValueError):
    """The budget is spent; the message is for the client."""


@dataclass
class Work:
    """A budget of work, in steps.

    Attributes:
        limit: the whole budget.
        left: the steps that are left.
    """

    limit: int = GRAMMAR
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.limit

    def spend(self, steps: int) -> None:
        """Take ``steps`` from the budget, before the work is done.

        Raises:
            TooMuchWorkError: fewer are left.
        """
        self.left -= steps
        if self.left < 0:
            self.left = 0
            raise TooMuchWorkError(
                f"the request's schemas need more than {self.limit} steps of work; declare fewer tools, properties and enum values, "
                "and fewer references and alternatives that are combined with each other"
            )
