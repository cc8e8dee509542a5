"""The states of patches that a live engine tells: what left every call is declined, what served one is active."""

import re

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import Group, Nursery

LEFT = "a prefill goes through all layers: hidden states of every row are asked for"


def test_a_patch_that_declines_at_its_first_forward_is_not_active(nursery: Nursery) -> None:
    """Where a server returns hidden states, each prefill of E2B is left to SGLang; only the first one shows that."""
    for asked, state, notes in ((True, "declined", [LEFT]), (False, "active", [])):
        group = Group(
            [list(range(20, 44))],
            client="patch_states:rows",
            extra={"patches": ["yoco", "shared_kv", "triple_norm"]},
        )
        ((answer,),) = nursery.run(resolve("tiny-e2b"), [group], enable_return_hidden_states=asked)
        rows = answer.meta_info
        assert (rows["yoco"]["state"], rows["yoco"]["reason"], rows["yoco"]["notes"]) == (state, "; ".join(notes), notes)
        assert len(re.findall("yoco (?:declined|active, but): ", answer.log)) == len(notes)
        assert rows["shared_kv"]["state"] == "active", "in use, and never asked for a call that it could leave"
        assert rows["triple_norm"]["state"] == "idle", "no GPU: what it left does not matter"
