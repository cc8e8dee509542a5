"""Blocks that DSpark's worker proposes: ``TEST_INSTRUMENTS`` names ``install``, which prints a line of JSON for each request of a step."""

import importlib
import json
from typing import Any

DRAFTED = "DRAFTED "
"""Before the JSON: tokens of the request's prompt, tokens before the block's first one, and the drafts."""


def install() -> None:
    proposer: Any = importlib.import_module("sglang.srt.speculative.dspark_components.dspark_draft").DraftBlockProposer
    original = proposer.propose

    def propose(self: Any, *, batch: Any, **named: Any) -> Any:
        found = original(self, batch=batch, **named)
        for req, before, drafts in zip(batch.reqs, batch.seq_lens.tolist(), found.draft_block.draft_tokens.tolist(), strict=True):
            print(DRAFTED + json.dumps([len(req.origin_input_ids), before, drafts]), flush=True)
        return found

    proposer.propose = propose
