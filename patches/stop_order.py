"""Under speculation an answer ends at the earliest stop; stock returns text past it."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4 import uses
from sglang_gemma4.patching import Hook, Patch


def token_by_token(original: Callable[[Any, int], None], req: Any, new_accepted_len: int = 1) -> None:
    """Around ``update_finish_state``: its conditions are asked after each token of an accepted run, as plain decoding does."""
    from sglang_gemma4.speculative import stops

    if new_accepted_len > 1 and stops.order_matters(req):
        stops.ask_after_each(original, req, new_accepted_len)
    else:
        original(req, new_accepted_len)


PATCH = Patch(
    switch="SGLANG_GEMMA4_VERIFY_RULES",
    why="In an accepted run stock asks stop strings before stop tokens, each in the order given: text past an earlier stop is returned.",
    evidence="srt/managers/schedule_batch.py:2023-2036, 1920 · tests/engine/test_mtp_lifecycle.py",
    remove_when="SGLang ends an accepted run at the earliest stop in it.",
    uses=(uses.speculation,),
    hooks=(Hook("sglang.srt.managers.schedule_batch.Req.update_finish_state", "around", token_by_token, "4a560c4925da"),),
)
