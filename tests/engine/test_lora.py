"""LoRA adapters, made by PEFT: greedy tokens in float32 are those of the same model with merged weights."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crash_repro import case as crash_case
from sglang_gemma4.tiny import checkpoints, random_adapters
from tests.harness.checkpoints import lora_adapters, text_only
from tests.harness.checkpoints.lora_adapters import ATTENTION, FFN, PLE, TEXT, Adapter
from tests.harness.engine_fork import EngineFailed, Group, Nursery, Output
from tests.harness.inputs.drafting import MTP
from tests.harness.oracles import reference

FAMILIES = ("tiny-e2b", "tiny-26b-a4b", "tiny-31b", "tiny-12b")
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
        return Group(self.prompts, sampling, client="generate:adapters", extra={"adapters": adapters, **extra})


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
        assert all(one != other for one, other in zip(adapter.answers, case.plain, strict=True)), (
            "an adapter that changes nothing shows nothing"
        )
    paths = {"whole": str(case.whole.path), "parts": str(case.parts.path)}
    groups = [case.group(*mix) for mix in MIXES]
    for mix, answers in zip(MIXES, nursery.run(case.model, groups, lora_paths=paths), strict=True):
        assert tokens(answers) == case.expected(*mix)


def test_with_mtp_the_draft_has_no_adapter(case: Case, nursery: Nursery) -> None:
    """Adapters come and go while the server runs."""
    draft = case.model.with_name(case.model.name + "-assistant")
    options: dict[str, Any] = {"lora_target_modules": ["all"], "enable_lora": True, "max_lora_rank": 8, "max_loras_per_batch": 2}
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


def test_what_does_not_fit_is_refused_by_name(nursery: Nursery, tmp_path: Path) -> None:
    """SGLang drops weights that it does not know, and meets a wrong size at the first request, in the scheduler."""
    model = checkpoints.SHIPPED / "tiny-e2b"
    sizes = random_adapters.sizes_of_checkpoint(model)
    one = next(iter(sizes))
    layer = "model.language_model.layers.7"
    others: dict[str, tuple[dict[str, tuple[int, int]], int, str]] = {
        "too high": (sizes, 8, "has rank 8, the server's buffers hold 4; start it with --max-lora-rank 8"),
        "tower": ({**sizes, "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear": (64, 64)}, 4, "vision_tower.* is not served"),
        "head": ({**sizes, "lm_head": (128, 1024)}, 4, "lm_head.* is not served"),
        "projection": (
            {**sizes, "model.language_model.per_layer_model_projection": (128, 160)},
            4,
            "per_layer_model_projection.* is not served",
        ),
        "narrow": ({**sizes, one: (128, 33)}, 4, r"q_proj.lora_B.weight is \[33, 4\]; for rank 4 this model's is \[128, 4\]"),
        "deep": ({**sizes, "model.language_model.layers.10.mlp.up_proj": (128, 512)}, 4, "the model has 10 layers"),
        "ffn": ({f"{layer}.mlp.up_proj": (128, 256)}, 4, r"up_proj.lora_B.weight is \[256, 4\]; for rank 4 this model's is \[512, 4\]"),
        "router": ({f"{layer}.router.proj": (128, 16)}, 4, "name nothing that is adapted here"),
        "experts": ({f"{layer}.self_attn.q_proj": (128, 128), f"{layer}.experts": (128, 64)}, 4, "layer 7 has no experts"),
    }
    paths = {name: str(random_adapters.write(tmp_path / name, some, rank, seed=0)) for name, (some, rank, _) in others.items()}
    options: dict[str, Any] = {"lora_target_modules": ["all"], "enable_lora": True, "max_lora_rank": 4}
    prompts = reference.text_prompts(model.name, [20])
    good = str(random_adapters.write(tmp_path / "good", sizes, 4, seed=0))
    groups = [
        Group([], client="generate:adapters", extra={"load": paths}),
        Group(prompts, {"max_new_tokens": 4}, client="generate:adapters", extra={"load": {"good": good}, "adapters": ["good"]}),
    ]
    said, after = nursery.run(model, groups, **options)
    for (name, (_, _, message)), answer in zip(others.items(), said, strict=True):
        assert re.search(message, answer.text), f"{name}: {answer.text}"
    assert after[0].text == ""
    assert len(after[1].token_ids) == 4


def test_the_start_is_refused_by_name(nursery: Nursery, tmp_path: Path) -> None:
    sizes = random_adapters.sizes_of_checkpoint(checkpoints.SHIPPED / "tiny-e2b")
    path = random_adapters.write(tmp_path, sizes, 8, seed=0)
    with pytest.raises(EngineFailed, match="has rank 8, the server's buffers hold 4"):
        nursery.run(checkpoints.SHIPPED / "tiny-e2b", [Group([])], lora_paths={"high": str(path)}, max_lora_rank=4)
    path = random_adapters.write(tmp_path / "v", {"model.language_model.layers.5.self_attn.v_proj": (128, 64)}, 4, seed=0)
    with pytest.raises(EngineFailed, match="layer 5 takes its values from k_proj"):
        nursery.run(checkpoints.SHIPPED / "tiny-31b", [Group([])], lora_paths={"values": str(path)})


def test_text_only_checkpoints(nursery: Nursery, tmp_path: Path) -> None:
    model = crash_case.text_model("tiny-e2b")
    path = text_only.save(model, tmp_path / "model", sglang_names=False)
    sizes = random_adapters.sizes_of(model)
    adapter = random_adapters.write(tmp_path / "adapter", sizes, 4, seed=0, spread=0.05)
    plain = crash_case.greedy(model)
    random_adapters.merge(model, random_adapters.weights(sizes, 4, seed=0, spread=0.05))
    adapted = crash_case.greedy(model)
    assert plain[0] != adapted[0]
    extra = {"adapters": ["some", None]}
    group = Group(crash_case.PROMPTS, {"max_new_tokens": crash_case.TOKENS}, client="generate:adapters", extra=extra)
    answers = nursery.run(path, [group], lora_paths={"some": str(adapter)})[0]
    assert tokens(answers) == [adapted[0], plain[1]]
