"""Which model an update is for, the way back from one that fits none, and the order of an assistant's head."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsFusedMoEMethod,
    CompressedTensorsLinearMethod,
)
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod, Fp8MoEMethod
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

from sglang_gemma4.speculative import assistant_weights as updates

VOCABULARY, CENTROIDS, WIDTH = 24, 4, 3


def checkpoint(folder: Path, architecture: str) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    return str(folder)


def updater(name: str, before: str = "before") -> Any:
    """A ``WeightUpdater`` of a model whose class has this name."""
    return SimpleNamespace(get_model=lambda: type(name, (), {})(), model_config=SimpleNamespace(model_path=before))


class Loading:
    """SGLang's update from disk: it fails on the paths it is told."""

    def __init__(self, *bad: str) -> None:
        self.bad, self.asked = bad, list[str]()

    def __call__(self, updater: Any, model_path: str, load_format: str) -> tuple[bool, str]:
        self.asked.append(model_path)
        updater.model_config.model_path = model_path
        if model_path in self.bad:
            raise AssertionError("sizes differ")
        return True, load_format


def test_an_assistants_checkpoint_is_known_by_its_configuration(tmp_path: Path) -> None:
    assert updates.path_holds_assistant(checkpoint(tmp_path / "a", "Gemma4AssistantForCausalLM")) is True
    assert updates.path_holds_assistant(checkpoint(tmp_path / "u", "Gemma4UnifiedAssistantForCausalLM")) is True
    assert updates.path_holds_assistant(checkpoint(tmp_path / "t", "Gemma4ForConditionalGeneration")) is False
    (tmp_path / "raw").mkdir()
    assert updates.path_holds_assistant(str(tmp_path / "raw")) is None


def asked(path: str, draft: str | None) -> tuple[bool, str]:
    """What a server of 26B-A4B, with a draft of this class, says to ``/update_weights_from_disk``."""
    runners = {"target": "Gemma4ForConditionalGeneration", "draft": draft or ""}
    manager = SimpleNamespace(
        _select_runners=lambda role: [(role, SimpleNamespace(model=type(runners[role], (), {})()))] if runners[role] else [],
        draft_worker=SimpleNamespace(draft_worker=None),
    )
    answer = updates.ask_for_assistant(
        lambda *_: SimpleNamespace(success=True, message="loaded"), manager, SimpleNamespace(model_path=path)
    )
    return answer.success, answer.message


def test_a_checkpoint_of_another_model_is_not_written_into_the_target(tmp_path: Path) -> None:
    """Such as that of an EAGLE-3 draft, some of whose tensors have the target's names: SGLang writes them and answers that it succeeded."""
    target = checkpoint(tmp_path / "target", "Gemma4ForConditionalGeneration")
    (tmp_path / "raw").mkdir()
    for draft in (None, "LlamaForCausalLMEagle3", "DFlashDraftModel"):
        assert asked(target, draft) == asked(str(tmp_path / "raw"), draft) == (True, "loaded")
        assert (
            "holds an MTP assistant, and this server has none"
            in asked(checkpoint(tmp_path / f"a{draft}", "Gemma4AssistantForCausalLM"), draft)[1]
        )
        for other in ("LlamaForCausalLMEagle3", "DFlashDraftModel", "Gemma4DSparkModel"):
            success, said = asked(checkpoint(tmp_path / f"{other} for {draft}", other), draft)
            assert not success
            assert said.endswith(
                f"holds {other}, and the served model is Gemma4ForConditionalGeneration: give a checkpoint of that; a draft takes weights "
                "by /update_weights_from_tensor with selector 'draft'"
            )


@pytest.mark.parametrize(
    ("model", "held", "loads"),
    [
        ("Gemma4ForConditionalGeneration", "Gemma4ForConditionalGeneration", True),
        ("Gemma4ForConditionalGeneration", "Gemma4AssistantForCausalLM", False),
        ("Gemma4AssistantForCausalLM", "Gemma4AssistantForCausalLM", True),
        ("Gemma4AssistantForCausalLM", "Gemma4ForConditionalGeneration", False),
    ],
)
def test_a_checkpoint_is_loaded_by_its_model_alone(tmp_path: Path, model: str, held: str, loads: bool) -> None:
    path, load, one = checkpoint(tmp_path / "new", held), Loading(), updater(model)
    success, message = updates.update_from_disk(load, one, path, "auto")
    assert success
    assert load.asked == [path] * loads
    assert one.model_config.model_path == (path if loads else "before")
    assert ("keeps its own" in message) != loads


def test_a_checkpoint_without_a_configuration_is_the_targets(tmp_path: Path) -> None:
    load = Loading()
    assert updates.update_from_disk(load, updater("Gemma4ForCausalLM"), str(tmp_path), "auto") == (True, "auto")
    assert "keeps its own" in updates.update_from_disk(load, updater("Gemma4AssistantForCausalLM"), str(tmp_path), "auto")[1]
    assert load.asked == [str(tmp_path)]


def test_what_does_not_fit_is_followed_by_what_did(tmp_path: Path) -> None:
    path, one = checkpoint(tmp_path / "new", "Gemma4ForCausalLM"), updater("Gemma4ForCausalLM")
    load = Loading(path)
    success, message = updates.update_from_disk(load, one, path, "auto")
    assert not success
    assert message == f"{path} does not fit this model: sizes differ; the weights of before are back"
    assert load.asked == [path, "before"]
    assert one.model_config.model_path == "before"


@pytest.mark.parametrize(("selector", "refused"), [("target", True), ("all", True), ("draft", False)])
def test_an_assistants_tensors_need_its_selector(selector: str, refused: bool) -> None:
    reason = updates.refusal(selector, ["model.norm.weight", "masked_embedding.token_ordering"])
    assert (reason is not None) == refused
    assert updates.refusal(selector, ["model.norm.weight"]) is None
    if reason is not None:
        assert "selector 'draft'" in reason


def test_tensors_that_do_not_fit_are_an_answer_not_an_end() -> None:
    def load(_updater: Any, _tensors: Any) -> tuple[bool, str]:
        raise AssertionError("sizes differ")

    for way in (updates.update_from_tensors, updates.update_from_received):
        success, message = way(load, updater("Gemma4ForCausalLM"), [("model.norm.weight", torch.ones(2))])
        assert not success
        assert "sizes differ" in message
    bucket = {"metadata": [SimpleNamespace(name="pre_projection.weight")], "flattened_tensor": torch.ones(2)}
    assert "'draft'" in updates.update_from_tensors(load, updater("Gemma4ForCausalLM"), bucket)[1]


class Assistant(torch.nn.Module):
    """Of SGLang's the head, its order, and a load that writes what comes and then sorts."""

    def __init__(self) -> None:
        super().__init__()
        self.lm_head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("token_ordering", torch.zeros(VOCABULARY, dtype=torch.long))

    def load(self, parts: dict[str, torch.Tensor]) -> None:
        from sglang.srt.models.gemma4_mtp import Gemma4AssistantForCausalLM as Stock

        with torch.no_grad():
            for name, tensor in parts.items():
                self.get_buffer(name).copy_(tensor) if name == "token_ordering" else self.lm_head.weight.copy_(tensor)
        updates.sort_head(Stock._reorder_embedding_to_centroid_order, self)


def weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "token_ordering": torch.randperm(VOCABULARY, generator=generator),
        "lm_head": torch.randn(VOCABULARY, WIDTH, generator=generator),
    }


def ways(parts: dict[str, torch.Tensor]) -> Iterator[list[dict[str, torch.Tensor]]]:
    """Calls that bring both."""
    one, two = ({name: tensor} for name, tensor in parts.items())
    yield from ([parts], [one, two], [two, one], [two, {}, one, {}], [one, parts])


@pytest.mark.parametrize("first", [True, False], ids=["after a checkpoint", "after random weights"])
@pytest.mark.parametrize("way", range(5))
def test_the_head_is_in_its_centroids_order(way: int, first: bool) -> None:
    model, new = Assistant(), weights(2)
    if first:
        updates.load_in_order(Assistant.load, model, weights(1))
    for call in list(ways(new))[way]:
        updates.load_in_order(Assistant.load, model, call)
    torch.testing.assert_close(model.lm_head.weight.detach(), new["lm_head"][new["token_ordering"]])


@pytest.mark.parametrize("wrong", [-1, VOCABULARY, 2**40])
def test_a_token_outside_the_vocabulary_is_refused(wrong: int) -> None:
    parts = weights(0)
    parts["token_ordering"][3] = wrong
    with pytest.raises(ValueError, match=rf"token_ordering has token {wrong}, its vocabulary {VOCABULARY} tokens"):
        Assistant().load(parts)


def quantised_model(method: type, name: str = "Gemma4ForConditionalGeneration", **attributes: Any) -> Any:
    """A model with one layer of this method, and an embedding that has none."""
    model: Any = type(name, (torch.nn.Module,), {})()
    model.quant_config, model.proj, model.table = object(), torch.nn.Module(), torch.nn.Embedding(2, 2)
    model.proj.quant_method, model.proj.scheme = object.__new__(method), SimpleNamespace(**attributes)
    vars(model.proj.quant_method).update(attributes)
    return model


@pytest.mark.parametrize(
    ("method", "attributes", "takes"),
    [
        (CompressedTensorsLinearMethod, {}, False),
        (CompressedTensorsLinearMethod, {"weight_block_size": [128, 128]}, True),
        (CompressedTensorsFusedMoEMethod, {"weight_block_size": None}, False),
        (Fp8LinearMethod, {"block_quant": False}, False),
        (Fp8LinearMethod, {"block_quant": True}, True),
        (Fp8MoEMethod, {"block_quant": False}, False),
        (UnquantizedLinearMethod, {}, True),
    ],
)
def test_weights_that_were_rearranged_when_they_were_loaded_take_no_others(
    tmp_path: Path, method: type, attributes: dict[str, Any], takes: bool
) -> None:
    """By disk, by a session for tensors, and from a checkpoint engine; a session of the draft alone is opened."""
    model, path = quantised_model(method, **attributes), checkpoint(tmp_path / "new", "Gemma4ForConditionalGeneration")
    one = SimpleNamespace(get_model=lambda: model, model_config=SimpleNamespace(model_path="before"))
    said = "proj is quantised, and was rearranged when it was loaded; start a server with the new checkpoint"
    success, message = updates.update_from_disk(Loading(), one, path, "auto")
    assert (success, said in message) == (takes, not takes)
    success, message = updates.update_from_ipc(lambda _updater, _request: (True, "done"), one, None)
    assert (success, said in message) == (takes, not takes)
    draft = SimpleNamespace(model=torch.nn.Module())
    runners = {"all": [("target", SimpleNamespace(model=model)), ("draft", draft)], "draft": [("draft", draft)]}
    manager = SimpleNamespace(_select_runners=lambda selector: runners[selector])
    begun = [updates.begin(lambda *_: None, manager, SimpleNamespace(selector=selector)) for selector in ("draft", "all")]
    assert begun[0] is None
    assert (begun[1] is None) is takes
    if not takes:
        assert not begun[1].success
        assert begun[1].message.endswith("(selector 'all' names the target too)")
