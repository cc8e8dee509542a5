"""4-bit checkpoints in GPTQ's layout: the tokens of the same levels laid out by compressed-tensors, experts and images too."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from crash_repro import dequantised, shipped
from sglang_gemma4.tiny import checkpoints
from tests.engine.test_quantised import accept_length, greedy, tokens_of
from tests.harness.checkpoints import gptq_checkpoint
from tests.harness.engine_fork import EngineFailed, Group, Nursery, without

Pair = tuple[Path, Path]
MODEL = "tiny-26b-a4b"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    """A family's checkpoint in compressed-tensors' layout and in GPTQ's; assistants lie beside them."""
    folder = tmp_path_factory.mktemp("gptq")

    @cache
    def write(family: str, form: str = "w4a16-g32", auto_round: bool = False) -> Pair:
        compressed = folder / f"{family}-{form}"
        if not compressed.exists():
            checkpoints.write(family, str(compressed), quantised=form)
        return compressed, gptq_checkpoint.write(compressed, folder / f"{family}-{form}-gptq{int(auto_round)}", auto_round=auto_round)

    return write


def test_experts_have_the_tokens_of_the_other_layout_with_and_without_mtp(nursery: Nursery, pair: Callable[..., Pair]) -> None:
    compressed, gptq = pair(MODEL)
    expected, plain, drafted = greedy(nursery, compressed), greedy(nursery, gptq), greedy(nursery, gptq, mtp=True)
    assert tokens_of(plain) == tokens_of(drafted) == tokens_of(expected)
    assert [one.logprobs for one in plain] == [one.logprobs for one in expected], "bit for bit"
    assert accept_length(drafted) > 1.5


def test_a_vision_tower_stays_as_it_is(nursery: Nursery, pair: Callable[..., Pair], tmp_path: Path) -> None:
    group = Group([shipped.IMAGE_TEXT], {"max_new_tokens": 8}, images=[str(shipped.draw(tmp_path))], logprobs=True)
    expected, found = (nursery.run(one, [group], skip_tokenizer_init=False)[0][0] for one in pair(MODEL))
    assert found.logprobs == expected.logprobs


@pytest.mark.parametrize(("family", "form", "auto_round", "flag"), [
    ("tiny-31b", "w4a16-g128", False, "gptq_marlin"),
    ("tiny-e2b", "w4a16-g32", True, "auto-round"),
    ("tiny-e2b", "w4a16-g32", False, None),
])  # fmt: skip
def test_dense_models_too_also_with_a_model_card_s_flag(
    nursery: Nursery, pair: Callable[..., Pair], family: str, form: str, auto_round: bool, flag: str | None
) -> None:
    compressed, gptq = pair(family, form, auto_round)
    expected = greedy(nursery, compressed)
    options: dict[str, Any] = {"quantization": flag} if flag else {}
    plain = greedy(nursery, gptq, **options)
    assert [one.logprobs for one in plain] == [one.logprobs for one in expected]


def test_groups_that_do_not_divide_the_experts(nursery: Nursery, pair: Callable[..., Pair], tmp_path: Path) -> None:
    """As groups of 128 and 26B-A4B's 704 and 2,112 inputs: of 64, one for an expert's 32 inputs, and one and a half for the dense 96."""
    compressed = gptq_checkpoint.coarse(pair(MODEL)[0], tmp_path / "compressed", 64)
    gptq = gptq_checkpoint.write(compressed, tmp_path / "gptq", auto_round=True, group=64)
    expected, found = greedy(nursery, compressed), greedy(nursery, gptq)
    assert [one.logprobs for one in found] == [one.logprobs for one in expected], "bit for bit"


def test_experts_in_4_bits_beside_8(nursery: Nursery, pair: Callable[..., Pair], tmp_path: Path) -> None:
    """As Intel's mixed 26B-A4B."""
    compressed = gptq_checkpoint.mixed(MODEL, pair(MODEL)[0], tmp_path / "compressed")
    eight = {layer: {"bits": 8} for layer in gptq_checkpoint.eight_bit_layers(compressed)}
    gptq = gptq_checkpoint.write(compressed, tmp_path / "gptq", auto_round=True, extra_config=eight)
    expected, found, drafted = greedy(nursery, compressed), greedy(nursery, gptq), greedy(nursery, gptq, mtp=True)
    assert [one.logprobs for one in found] == [one.logprobs for one in expected], "bit for bit"
    assert tokens_of(greedy(nursery, dequantised.write(compressed, tmp_path / "float32"))) == tokens_of(found) == tokens_of(drafted)
    assert accept_length(drafted) > 1.5


@pytest.mark.parametrize(("changes", "env", "said"), [
    ({"desc_act": True}, {}, "inputs in the order of their activations (desc_act)"),
    ({"sym": False}, {}, "quantised values that are not symmetric"),
    ({}, without("gptq_layout"), "gptq_layout or quantised_names left out"),
    ({}, without("quantised_names"), "gptq_layout or quantised_names left out"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(
    nursery: Nursery, pair: Callable[..., Pair], tmp_path: Path, changes: dict[str, Any], env: dict[str, str], said: str
) -> None:
    model = gptq_checkpoint.write(pair(MODEL)[0], tmp_path / "model", **changes)
    (model / "model.safetensors").unlink()
    with pytest.raises(EngineFailed) as refused:
        greedy(nursery, model, env=env)
    assert f"quant_method gptq with {said}: the CPU reference engine reads checkpoints of compressed-tensors only" in str(refused.value)


def test_zero_points_that_belie_the_config_end_the_load(nursery: Nursery, pair: Callable[..., Pair], tmp_path: Path) -> None:
    model = gptq_checkpoint.write(pair(MODEL)[0], tmp_path / "model")
    tensors = safetensors.torch.load_file(model / "model.safetensors")
    name = next(name for name in tensors if name.endswith("qzeros"))
    tensors[name][0, 0] += 1
    safetensors.torch.save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineFailed, match="holds zero points other than 8"):
        greedy(nursery, model)
