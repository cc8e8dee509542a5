"""Each checkpoint variant's verdict by its files' headers: whole, or refused in one line that names tensors and remedy."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang")

from sglang_gemma4.checkpoint import PreflightError  # noqa: E402
from sglang_gemma4.checkpoint.safetensors_files import stored_at, tensors_of  # noqa: E402
from sglang_gemma4.checkpoint.whole_checkpoint import Tensor, left_over, reason_against  # noqa: E402
from sglang_gemma4.models.checkpoint_arrival import ARRIVED, check_files, load  # noqa: E402
from sglang_gemma4.tiny import checkpoints  # noqa: E402
from tests.harness.checkpoints import gptq_checkpoint, published_checkpoint  # noqa: E402
from tests.harness.checkpoints.checkpoint_variants import VARIANTS, write  # noqa: E402


@pytest.mark.parametrize("name", VARIANTS)
def test_the_verdict(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    folder = write(name, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    towers = not variant.text_only
    if variant.refused is None or "pickled" in name:  # no headers: judged as the tensors arrive
        check_files(str(folder), config, towers)
        return
    with pytest.raises(PreflightError) as refused:
        check_files(str(folder), config, towers)
    assert re.search(variant.refused, str(refused.value)), refused.value
    assert "\n" not in str(refused.value)
    assert variant.finish is not None or str(refused.value).endswith("set SGLANG_GEMMA4_WITHOUT=whole_checkpoints")


@pytest.mark.parametrize(("name", "is_there"), [("three_files_and_an_index", True), ("a_file_of_the_index_lost", False)])
def test_a_hub_s_model_is_judged_once_it_is_in_the_cache_whole(name: str, is_there: bool, tmp_path: Path) -> None:
    """What is missing there is downloaded later."""
    repository = tmp_path / "models--me--gemma"
    (repository / "refs").mkdir(parents=True)
    (repository / "snapshots").mkdir()
    (repository / "refs" / "main").write_text("0123")
    write(name, repository / "snapshots" / "0123")
    assert (stored_at("me/gemma", None, str(tmp_path)) is not None) == is_there
    assert stored_at("me/other", None, str(tmp_path)) is None
    assert stored_at("s3://bucket/gemma") is None


@pytest.mark.parametrize("form", ["fp8-dynamic", "fp8-static", "fp8-block", "w4a16-g32", "w4a16-asym-g32"])
def test_every_layout_that_is_served_is_whole(form: str, tmp_path: Path) -> None:
    """compressed-tensors', and of 4 bits GPTQ's, AWQ's and experts in one tensor too; nothing of any is left over."""
    source = tmp_path / "source"
    checkpoints.write("tiny-26b-a4b", str(source), quantised=form)
    folders = [source, tmp_path / "source-assistant"]
    if form == "w4a16-g32":
        folders += [gptq_checkpoint.write(source, tmp_path / "gptq"), published_checkpoint.write(source, tmp_path / "one")]
    if form == "w4a16-asym-g32":
        folders += [gptq_checkpoint.write_awq(source, tmp_path / "awq")]
    for folder in folders:
        config, stored = json.loads((folder / "config.json").read_text()), tensors_of(folder)
        assert stored is not None
        assert reason_against({name: Tensor(one.dtype, one.shape) for name, one in stored.items()}, config) is None
        assert left_over(stored, config) == []


def test_names_of_other_quantisers_are_no_gaps() -> None:
    """ModelOpt's NVFP4, where a calibration met one expert only; bitsandbytes; and AWQ."""
    text = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "enable_moe_block": True, "num_experts": 2}
    config = {"text_config": {**text, "moe_intermediate_size": 16, "hidden_size_per_layer_input": 0, "model_type": "gemma4_text"}}
    layer = "model.language_model.layers.0."
    norms = [f"{one}_layernorm.weight" for one in ("input", "post_attention", "pre_feedforward", "post_feedforward")]
    norms += [f"{one}.weight" for one in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")]
    bare = [
        f"{layer}{one}" for one in (*norms, "self_attn.q_norm.weight", "self_attn.k_norm.weight", "router.scale", "router.per_expert_scale")
    ]
    bare += [f"{layer}router.proj.weight", "model.language_model.embed_tokens.weight", "model.language_model.norm.weight"]
    layers = [f"{layer}self_attn.{one}_proj" for one in "qkvo"] + [f"{layer}mlp.{one}_proj" for one in ("gate", "up", "down")]
    experts = [f"{layer}experts.{number}.{one}_proj" for number in (0, 1) for one in ("gate", "up", "down")]

    def reason(method: str, parts: tuple[str, ...], more: tuple[str, ...] = ()) -> str | None:
        names = [*bare, *(f"{one}.{part}" for one in layers + experts for part in parts), *more]
        found = {name: Tensor("U8" if "_proj" in name else "BF16", ()) for name in names}
        given = {**config, "quantization_config": {"quant_method": method}}
        assert method == "bitsandbytes" or left_over(found, given) == []
        return reason_against(found, given, shapes=False)

    assert reason("modelopt", ("weight", "weight_scale", "weight_scale_2"), (f"{layer}experts.0.up_proj.input_scale",)) is None
    assert reason("bitsandbytes", ("weight", "weight.absmax", "weight.quant_state.bitsandbytes__nf4")) is None
    assert reason("awq", ("qweight", "qzeros", "scales")) is None
    assert "in quantised values, and no scales of it" in str(reason("awq", ("qweight", "qzeros")))


def test_an_update_may_bring_any_part_of_a_model() -> None:
    """By any of the names that a start would read."""
    model = SimpleNamespace()
    sent = [("model.layers.0.mlp.gate_proj.weight", torch.ones(1)), ("lm_head.weight", torch.ones(1))]
    taken = load(lambda _model, weights: [name for name, _ in weights], model, sent)
    assert taken == ["model.language_model.layers.0.mlp.gate_proj.weight", "lm_head.weight"]
    assert not hasattr(model, ARRIVED)
