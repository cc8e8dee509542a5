"""An engine that is given nothing for MTP but ``auto``: its assistant is found, drafts are accepted, tokens stay."""

from sglang_gemma4.tiny import checkpoints
from tests.engine.engine_fork import Group, Nursery

MODEL = checkpoints.SHIPPED / "tiny-e2b"
PROMPTS = [[2, 100, 200, 300, 5, 6, 7, 8] * 4, [2, *range(100, 140)]]


def test_auto_is_enough(nursery: Nursery) -> None:
    group = Group(PROMPTS, {"max_new_tokens": 24})
    drafted = nursery.run(MODEL, [group], speculative_draft_model_path="auto")[0]
    plain = nursery.run(MODEL, [group])[0]
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    assert all(one.meta_info["spec_verify_ct"] < 24 for one in drafted)
    assert "for the MTP assistant: --speculative-draft-model-path" in drafted[0].log
    assert "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4" in drafted[0].log
