"""``SGLANG_GEMMA4_FORCE_EAGLE``: a frozen assistant is refused; a draft with KV of its own, whatever it is also named, drafts by EAGLE."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.harness.engine_fork import EngineFailed, Group, Nursery
from tests.harness.oracles.reference import CHECKPOINTS, greedy_all, text_prompts

NAME = "tiny-26b-a4b"
FORCED = {"SGLANG_GEMMA4_FORCE_EAGLE": "1"}
STEPS, TOKENS = 3, 12


def mtp(algorithm: str, draft: Path) -> dict[str, Any]:
    lengths = {"speculative_num_steps": STEPS, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": STEPS + 1}
    return {"speculative_algorithm": algorithm, "speculative_draft_model_path": draft, **lengths}


def eagle_draft(folder: Path) -> Path:
    """A random EAGLE draft for ``NAME``, of a class that SGLang has, under an assistant's name too: enough for SGLang to promote it."""
    hidden, head, config = 128, 64, json.loads((CHECKPOINTS / NAME / "config.json").read_text())
    assert config["text_config"]["hidden_size"] == hidden
    own = {
        "architectures": ["LlamaForCausalLMEagle", "Gemma4AssistantForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": hidden,
        "vocab_size": config["text_config"]["vocab_size"],
        "num_hidden_layers": 1,
        "num_attention_heads": hidden // head,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(own))
    shapes = {"fc.weight": (hidden, 2 * hidden), "fc.bias": (hidden,), "layers.0.post_attention_layernorm.weight": (hidden,)}
    shapes |= {f"layers.0.mlp.{name}_proj.weight": (hidden, hidden) for name in ("gate", "up", "down")}
    rows = {"q": hidden, "k": head, "v": head, "o": hidden}
    shapes |= {f"layers.0.self_attn.{name}_proj.weight": (count, hidden) for name, count in rows.items()}
    save_file({name: 0.05 * torch.randn(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("algorithm", ["NEXTN", "EAGLE"])
def test_a_frozen_assistant_is_refused(algorithm: str, nursery: Nursery) -> None:
    draft = CHECKPOINTS / f"{NAME}-assistant"
    with pytest.raises(EngineFailed) as error:
        nursery.run(CHECKPOINTS / NAME, [Group([[2, 300]])], FORCED, 60.0, **mtp(algorithm, draft))
    assert f"SGLANG_GEMMA4_FORCE_EAGLE=1: {draft} loads as Gemma4AssistantForCausalLM, a frozen assistant" in str(error.value)
    assert "PreflightError" in str(error.value)
    assert "set SGLANG_GEMMA4_FORCE_EAGLE=0 to draft with it by FROZEN_KV_MTP" in str(error.value)
    assert "Load weight begin" not in str(error.value)


def test_a_draft_that_writes_its_own_kv_is_left_to_eagle(interpreting: Nursery, tmp_path: Path) -> None:
    prompts = text_prompts(NAME, [20])
    group = Group(prompts, {"max_new_tokens": TOKENS, "ignore_eos": True})
    options: dict[str, Any] = {"attention_backend": "triton", **mtp("NEXTN", eagle_draft(tmp_path))}
    env = {**FORCED, "TEST_INSTRUMENTS": "tree_masks:full"}
    ((answer,),) = interpreting.run(CHECKPOINTS / NAME, [group], env, **options)
    assert [answer.token_ids] == greedy_all(NAME, prompts, TOKENS)
    assert answer.meta_info["spec_num_proposed_drafts"] == STEPS * answer.meta_info["spec_verify_ct"] > 0
