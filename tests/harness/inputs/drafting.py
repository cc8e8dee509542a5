"""An engine's arguments for MTP in chains of three drafts, as the tiny models' assistants are measured."""

from pathlib import Path
from typing import Any

MTP: dict[str, Any] = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


def with_assistant(model: str | Path) -> dict[str, Any]:
    """With the checkpoint's own assistant, which lies beside it."""
    return {**MTP, "speculative_draft_model_path": f"{model}-assistant"}
