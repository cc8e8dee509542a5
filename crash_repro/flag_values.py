"""Flags with which SGLang loads Gemma 4's weights, and then ends with a traceback or answers no request. Needs no GPU.

And a pool that is no whole pages, with which the server ends as soon as it has nothing to do.
"""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

CASES: tuple[dict[str, Any], ...] = (
    {"speculative_algorithm": "EAGLE"},
    {"context_length": 0},
    {"offload_group_size": 2},
    {"schedule_policy": "priority"},
    {"decode_log_interval": 0},
    {"disable_hybrid_swa_memory": True},
)
"""The last two start, and every request is an error."""
PAGES: dict[str, Any] = {"page_size": 64, "chunked_prefill_size": 64, "max_total_tokens": 1200, "max_running_requests": 8}
"""1,200 tokens are 18 pages and three quarters."""
REFUSED = "refused before weights are loaded"


def main() -> int:
    """What an engine with each of them says."""
    model, seen = shipped.target("tiny-26b-a4b"), []
    for flags in CASES:
        said = engines.ask(model, "flag_values:answer", time_limit=60, **flags)
        (name,) = flags
        refused = isinstance(said, str) and f"PreflightError: --{name.replace('_', '-')}" in said
        seen.append(REFUSED if refused else f"{name}: {said}")
    said = engines.ask(model, "flag_values:answer", time_limit=60, disable_radix_cache=True, **PAGES)
    seen.append("answered" if isinstance(said, list) else said)
    return int(case.verdict([REFUSED] * len(CASES) + ["answered"], seen))


def answer(engine: Any, _extra: None) -> list[int]:
    """The client: two tokens after a prompt."""
    tokens: list[int] = engine.generate(input_ids=[2, 300, 301], sampling_params={"max_new_tokens": 4, "temperature": 0})["output_ids"]
    return tokens


if __name__ == "__main__":
    sys.exit(main())
