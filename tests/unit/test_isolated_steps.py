"""A step's error where failures are not isolated: the error itself ends the server."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4.serving import isolated_steps
from sglang_gemma4.serving.failed_requests import abort_reason

SCHEDULER = SimpleNamespace(waiting_queue=[])


def fails(*_args: Any) -> None:
    raise RuntimeError("the trap's error")


@pytest.mark.parametrize(
    "step",
    [
        lambda: isolated_steps.schedule(fails, SCHEDULER),
        lambda: isolated_steps.run(fails, SCHEDULER, None),
        lambda: isolated_steps.sample(fails, SCHEDULER, None, None),
        lambda: isolated_steps.process(fails, SCHEDULER, None, None),
    ],
    ids=["schedule", "run", "sample", "process"],
)
def test_the_error_stays_what_it_is(step: Callable[[], None]) -> None:
    with pytest.raises(RuntimeError, match="the trap's error"):
        step()


def test_a_request_that_never_fails_alone_is_not_called_the_cause() -> None:
    alone, together = (abort_reason(ValueError("rows differ"), batches) for batches in (0, 3))
    assert (alone["status_code"], together["status_code"]) == (400, 500)
    assert alone["message"].startswith("this request failed alone")
    assert together["message"].startswith(
        "3 batches with this request failed, though it does not fail alone; another request may be the cause"
    )
