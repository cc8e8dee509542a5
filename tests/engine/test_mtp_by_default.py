"""An engine that is given nothing for MTP but ``auto``: its assistant is found, drafts are accepted, tokens stay.

The assistant is named as a unified one, which SGLang loads as well."""

import json
import shutil
from pathlib import Path

from sglang_gemma4.tiny import checkpoints
from tests.harness.engine_fork import Group, Nursery

MODEL = checkpoints.SHIPPED / "tiny-e2b"
PROMPTS = [[2, 100, 200, 300, 5, 6, 7, 8] * 4, [2, *range(100, 140)]]


def unified_pair(folder: Path) -> Path:
    """The model in a folder of its own, beside its assistant under the other name."""
    model, assistant = folder / MODEL.name, folder / f"{MODEL.name}-assistant"
    model.symlink_to(MODEL)
    shutil.copytree(f"{MODEL}-assistant", assistant)
    config = json.loads((assistant / "config.json").read_text())
    (assistant / "config.json").write_text(json.dumps(config | {"architectures": ["Gemma4UnifiedAssistantForCausalLM"]}))
    return model


def test_auto_is_enough(nursery: Nursery, tmp_path: Path) -> None:
    group = Group(PROMPTS, {"max_new_tokens": 24})
    drafted = nursery.run(unified_pair(tmp_path), [group], speculative_draft_model_path="auto")[0]
    plain = nursery.run(MODEL, [group])[0]
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    assert all(one.meta_info["spec_verify_ct"] < 24 for one in drafted)
    assert "for the MTP assistant: --speculative-draft-model-path" in drafted[0].log
    assert "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4" in drafted[0].log
