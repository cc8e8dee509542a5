"""What prepares a start fails in a real engine: a line each, and the answers of an engine without it."""

from pathlib import Path

from sglang_gemma4.serving.launch import resolve
from tests.harness.engine_fork import Group, Nursery, Output

PROMPT = "<bos>The ruler of Belm is"


def test_a_failing_preparation_changes_nothing(nursery: Nursery, tmp_path: Path) -> None:
    group = Group([PROMPT], {"max_new_tokens": 8})
    env = {"SGLANG_GEMMA4_COMPILE_AHEAD": "1", "TEST_INSTRUMENTS": "hopper_standin:install", "SGLANG_GEMMA4_CACHE_DIR": str(tmp_path)}
    # MTP as the README starts it: by the assistant alone, from which the rest follows while SGLang resolves its arguments.
    model, drafts = resolve("tiny-e2b"), resolve("tiny-e2b-assistant")
    answers: list[Output] = [nursery.run(model, [group], env=given, speculative_draft_model_path=drafts)[0][0] for given in (env, {})]
    assert answers[0].token_ids == answers[1].token_ids
    for said in (
        "1 kernels that an earlier start listed are compiled while weights load",
        "kernels compiled ahead: the process ended with status 1 and no answer; the start goes on",
        "FlashAttention-4 compiled ahead: the process ended with status 0 and no answer; the start compiles what it needs",
        "asked for CUDA modules: 9 0 kv:128 kv:256 activation:float32 tree\n",
        "3 of SGLang's CUDA modules were compiled ahead in 1.0 s; not tree: RuntimeError: nvcc fatal: no such arch\n",
    ):
        assert answers[0].log.count(said) == 1
        assert said not in answers[1].log
    assert list(tmp_path.rglob("*.json")) == [], "nothing that failed is kept"
