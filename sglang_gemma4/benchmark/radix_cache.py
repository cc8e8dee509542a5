"""Between two passes of one engine: no prompt may find its keys of the pass before."""

import time
from typing import Any


def empty_radix_cache(engine: Any, seconds: float = 5.0) -> None:
    """Flush an offline engine's cache, which is refused as long as the scheduler still holds answered requests.

    Raises:
        ValueError: after ``seconds`` it still is.
    """
    deadline = time.monotonic() + seconds
    while not engine.flush_cache().success:
        if time.monotonic() > deadline:
            raise ValueError("the radix cache cannot be emptied: the engine serves other requests; measure an engine of your own")
        time.sleep(0.1)
