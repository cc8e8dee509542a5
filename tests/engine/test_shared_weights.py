"""Engines that share one copy of random weights (``bench --share-weights``) say what engines with their own say."""

import hashlib
from pathlib import Path

from sglang_gemma4.tiny import checkpoints
from tests.engine.test_dummy_weights import PROMPTS
from tests.harness.engine_fork import Group, Nursery


def test_a_single_copy(nursery: Nursery, tmp_path: Path) -> None:
    target = checkpoints.SHIPPED / "tiny-26b-a4b"
    answers = []
    written: list[dict[str, str]] = []
    for shared in (None, "filled", "mapped"):
        (outputs,) = nursery.run(
            target,
            [Group(PROMPTS, {"max_new_tokens": 16})],
            env={"SGLANG_GEMMA4_SHARED_WEIGHTS": f"65536:{tmp_path}"} if shared else {},
            load_format="dummy",
            speculative_draft_model_path=f"{target}-assistant",
            speculative_algorithm="FROZEN_KV_MTP",
        )
        answers.append([output.token_ids for output in outputs])
        if shared:
            names = [path.name for path in tmp_path.glob("*.handles")]
            assert len(names) == 2, names
            written.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.glob("*.weights")})
    assert written[0], "no tensor of a tiny model is that large"
    assert written[1] == written[0], "the second engine wrote into the first one's weights"
    assert answers[0] == answers[1] == answers[2]
