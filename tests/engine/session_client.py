"""Sessions that take turns at an engine: ``client="session_client:send"``.

``prompts`` are the first turns. ``extra["added"]`` holds for each further turn what every session's user adds, and ``extra["together"]``
how many sessions are asked at once. A further turn's prompt is all that was said before it. The answers are in the order of turns, then
sessions; ``meta_info["asked"]`` is the prompt, and where metrics are on, the last one has ``meta_info["counters"]`` (``metrics_client``).
"""

import os
from typing import Any

from tests.engine import metrics_client, nursery


def send(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """Every session's first turn, then every session's second, and so on."""
    prompts, together = list(group["prompts"]), group["extra"]["together"]
    found: list[dict[str, Any]] = []
    for added in [None, *group["extra"]["added"]]:
        if added:
            last = found[-len(prompts) :]
            prompts = [answer["meta_info"]["asked"] + answer["token_ids"] + new for answer, new in zip(last, added, strict=True)]
        for first in range(0, len(prompts), together):
            asked = prompts[first : first + together]
            answers = nursery.send(engine, {**group, "prompts": asked})
            for answer, prompt in zip(answers, asked, strict=True):
                answer["meta_info"]["asked"] = prompt
            found += answers
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        found[-1]["meta_info"]["counters"] = metrics_client.counters()
    return found
