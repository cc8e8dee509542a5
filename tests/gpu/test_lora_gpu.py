"""LoRA on a card, in bfloat16 and CUDA graphs: adapters made by PEFT follow the merged model in float32 as long as merged weights do."""

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer  # noqa: F401 - of threads that ask transformers for a lazy name at the same time, one fails

from sglang_gemma4.tiny import checkpoints
from tests.gpu.test_gpu import FOLLOWED_SLACK, agreement, run_case
from tests.harness.checkpoints import lora_adapters
from tests.harness.checkpoints.lora_adapters import ATTENTION, FFN, TEXT
from tests.harness.engine_fork import Group
from tests.harness.inputs.drafting import MTP
from tests.harness.oracles import reference
from tests.harness.oracles.transformers_oracle import Greedy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

NEW_TOKENS = 48
LENGTHS = [20, 40, 60, 90, 150, 30, 70, 110]
ERROR_RATIO = 1.3
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense e2b": ("tiny-e2b", {"target_modules": f"{TEXT}({ATTENTION}|{FFN}|{lora_adapters.PLE})"}),
    "dense 26b": ("tiny-26b-a4b", {"target_modules": f"{TEXT}({ATTENTION}|{FFN})"}),
    "experts 26b": ("tiny-26b-a4b", {"target_modules": f"{TEXT}{ATTENTION}", "target_parameters": EXPERTS}),
}


@dataclass
class Adapted:
    """A model, its adapter, the merged checkpoint, and what transformers decodes in float32 with and without the adapter."""

    model: Path
    adapter: Path
    merged: Path
    prompts: list[list[int]]
    oracle: list[Greedy]
    plain: list[Greedy]


@dataclass
class Asked:
    """What ``run_case`` sends; ``adapters``: one name or None for each prompt."""

    model: Path
    prompts: Sequence[list[int]]
    adapters: Sequence[str | None] | None = None

    def groups(self) -> list[Group]:
        sampling = {"max_new_tokens": NEW_TOKENS}
        if self.adapters is None:
            return [Group(self.prompts, sampling, logprobs=True)]
        return [Group(self.prompts, sampling, logprobs=True, client="generate:adapters", extra={"adapters": self.adapters})]


@torch.no_grad()
def decoded(model: Any, prompts: Sequence[list[int]]) -> list[Greedy]:
    """Greedy, with the log-probability of each token."""
    found = []
    for prompt in prompts:
        options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}
        done = model.generate(torch.tensor([prompt]), **options, output_logits=True, return_dict_in_generate=True)
        tokens = done.sequences[0, len(prompt) :]
        scores = torch.stack([step[0] for step in done.logits]).float().log_softmax(-1)
        found.append(Greedy(prompt, tokens.tolist(), scores.gather(1, tokens[:, None])[:, 0].tolist(), 0.0))
    return found


def made(name: str, folder: Path) -> Adapted:
    """With the merged model saved beside the adapter."""
    from peft import LoraConfig, get_peft_model

    family, config = ADAPTERS[name]
    model, shipped = reference.load(family), checkpoints.SHIPPED / family
    prompts = reference.text_prompts(family, LENGTHS)
    plain = decoded(model, prompts)
    adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, **config))
    generator = torch.Generator().manual_seed(0)
    for weight_name, weight in adapted.named_parameters():
        if "lora_" in weight_name:
            weight.data = torch.randn(weight.shape, generator=generator) * (0.05 if "lora_A" in weight_name else 0.1)
    adapted.save_pretrained(str(folder / "adapter"))
    merged = adapted.merge_and_unload()
    merged.save_pretrained(folder / "merged")
    for file in shipped.iterdir():
        if not (folder / "merged" / file.name).exists() and file.is_file():
            shutil.copy(file, folder / "merged")
    return Adapted(shipped, folder / "adapter", folder / "merged", prompts, decoded(merged, prompts), plain)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Adapted]:
    return {name: made(name, tmp_path_factory.mktemp(name.replace(" ", "-"))) for name in ADAPTERS}


@pytest.fixture(scope="module")
def answers(cases: dict[str, Adapted], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """By adapter and arm: merged weights, the adapter for all, for every second request, and under MTP; three engines at a time."""
    folder = tmp_path_factory.mktemp("engines")

    def one(key: tuple[str, str]) -> list[dict[str, Any]]:
        case, arm = cases[key[0]], key[1]
        name = "-".join(key).replace(" ", "-")
        if arm == "merged":
            return run_case(Asked(case.merged, case.prompts), folder, name)  # type: ignore[arg-type]
        using = ["some" if arm != "mixed" or number % 2 else None for number in range(len(case.prompts))]
        options: dict[str, Any] = {"lora_paths": {"some": str(case.adapter)}, "max_loras_per_batch": 4}
        if arm == "mtp":
            options |= {**MTP, "speculative_draft_model_path": f"{case.model}-assistant"}
        return run_case(Asked(case.model, case.prompts, using), folder, name, **options)  # type: ignore[arg-type]

    keys = [(name, arm) for name in ADAPTERS for arm in ("merged", "lora", "mixed", "mtp")]
    with ThreadPoolExecutor(3) as pool:
        return dict(zip(keys, pool.map(one, keys), strict=True))


@pytest.mark.parametrize("arm", ["lora", "mixed", "mtp"])
@pytest.mark.parametrize("name", list(ADAPTERS))
def test_answers_follow_merged_weights(name: str, arm: str, cases: dict[str, Adapted], answers: dict[tuple[str, str], Any]) -> None:
    case, mine = cases[name], list(range(len(LENGTHS)))[1::2] if arm == "mixed" else list(range(len(LENGTHS)))
    oracle = [case.oracle[number] for number in mine]
    assert all(one.token_ids != other.token_ids for one, other in zip(oracle, [case.plain[number] for number in mine], strict=True))
    merged, found = (agreement([answers[name, key][number] for number in mine], oracle) for key in ("merged", arm))
    print(f"{name}, {arm}: follows for {found[0]:.3f} of the tokens (merged {merged[0]:.3f}), error {found[1]:.4f} ({merged[1]:.4f})")
    assert found[0] >= merged[0] - FOLLOWED_SLACK
    assert found[1] <= merged[1] * ERROR_RATIO


@pytest.mark.parametrize("name", list(ADAPTERS))
def test_requests_without_an_adapter_beside_others(name: str, cases: dict[str, Adapted], answers: dict[tuple[str, str], Any]) -> None:
    case = cases[name]
    merged = agreement(answers[name, "merged"], case.oracle)
    found = agreement(answers[name, "mixed"][0::2], case.plain[0::2])
    print(f"{name}: without an adapter follows for {found[0]:.3f}, error {found[1]:.4f}; merged {merged[0]:.3f}, {merged[1]:.4f}")
    assert found[0] >= merged[0] - FOLLOWED_SLACK
