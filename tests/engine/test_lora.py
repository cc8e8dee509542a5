"""LoRA adapters, made by PEFT: greedy tokens in float32 are those of the same model with merged weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.tiny import checkpoints
from tests.engine import lora_adapters, reference
from tests.engine.engine_fork import EngineFailed, Group, Nursery, Output
from tests.engine.lora_adapters import ATTENTION, FFN, PLE, TEXT, Adapter
from tests.engine.test_oracle import MTP

FAMILIES = ("tiny-e2b", "tiny-26b-a4b", "tiny-31b")
TOKENS = 16
LENGTHS = [40, 90, 20]
"""One prompt is longer than the sliding windows."""


@dataclass
class Case:
    """A family's prompts, the answers without an adapter, and two adapters: of everything, and of single projections."""

    model: Path
    prompts: list[list[int]]
    plain: list[list[int]]
    whole: Adapter
    parts: Adapter

    def expected(self, *adapters: str | None) -> list[list[int]]:
        answers = {None: self.plain, "whole": self.whole.answers, "parts": self.parts.answers}
        return [answers[adapter][number] for number, adapter in enumerate(adapters)]

    def group(self, *adapters: str | None, **extra: Any) -> Group:
        sampling = {"max_new_tokens": TOKENS}
        return Group(self.prompts, sampling, client="lora_client:send", extra={"adapters": adapters, **extra})


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name, folder = request.param, tmp_path_factory.mktemp("lora")
    prompts = reference.text_prompts(name, LENGTHS)
    layers = f"({ATTENTION}|{FFN}|{PLE})" if name == "tiny-e2b" else f"({ATTENTION}|{FFN})"
    whole = lora_adapters.make(name, folder / "whole", prompts, TOKENS, r=4, lora_alpha=8, target_modules=TEXT + layers)
    options: dict[str, Any] = {"target_modules": ["k_proj", "up_proj", "o_proj"], "exclude_modules": ".*vision_tower.*", "use_rslora": True}
    parts = lora_adapters.make(name, folder / "parts", prompts, TOKENS, seed=1, r=8, lora_alpha=8, **options)
    return Case(checkpoints.SHIPPED / name, prompts, reference.greedy_all(name, prompts, TOKENS), whole, parts)


def tokens(answers: list[Output]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


MIXES: list[tuple[str | None, ...]] = [("whole", None, "parts"), (None, "parts", "whole"), ("parts", "whole", None)]


def test_mixed_batches(case: Case, nursery: Nursery) -> None:
    for adapter in (case.whole, case.parts):
        assert all(one != other for one, other in zip(adapter.answers, case.plain, strict=True)), "an adapter that changes nothing shows nothing"
    paths = {"whole": str(case.whole.path), "parts": str(case.parts.path)}
    groups = [case.group(*mix) for mix in MIXES]
    for mix, answers in zip(MIXES, nursery.run(case.model, groups, lora_paths=paths), strict=True):
        assert tokens(answers) == case.expected(*mix)


def test_with_mtp_the_draft_has_no_adapter(case: Case, nursery: Nursery) -> None:
    """Adapters come and go while the server runs."""
    draft = case.model.with_name(case.model.name + "-assistant")
    options = {"lora_target_modules": ["all"], "enable_lora": True, "max_lora_rank": 8, "max_loras_per_batch": 2}
    first, second, third = nursery.run(
        case.model,
        [
            case.group("parts", None, None, load={"parts": str(case.parts.path)}),
            case.group(None, "whole", "parts", load={"whole": str(case.whole.path)}),
            case.group(None, "whole", "whole", unload=["parts"]),
        ],
        speculative_draft_model_path=draft,
        **MTP,
        **options,
    )
    assert [answer.text for answer in (first[0], second[0], third[0])] == ["", "", ""]
    assert tokens(first[1:]) == case.expected("parts", None, None)
    assert tokens(second[1:]) == case.expected(None, "whole", "parts")
    assert tokens(third[1:]) == case.expected(None, "whole", "whole")
    steps = first[2].meta_info["spec_verify_ct"]
    assert steps < TOKENS - 1, f"{steps} verify steps for {TOKENS} tokens: no draft was accepted"
