"""Checkpoints that people bring: a shipped tiny one, its tensors renamed, taken away, cut or packed otherwise, and the verdict on each.

``VARIANTS`` is the table; ``docs/operating.md`` has it in words.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_gemma4.checkpoint.safetensors_files import INDEX
from sglang_gemma4.tiny import checkpoints

Tensors = dict[str, Any]
Change = Callable[[Tensors, dict[str, Any]], Tensors]
Finish = Callable[[Path, Tensors], None]
AT = "model.language_model."
UP, GATE = f"{AT}layers.2.mlp.up_proj.weight", f"{AT}layers.2.mlp.gate_proj.weight"


@dataclass(frozen=True)
class Variant:
    """One checkpoint.

    Attributes:
        change: from its tensors and its config.json, which it may change in place, to the tensors that are written.
        refused: a pattern of the refusal, None where the checkpoint loads.
        finish: writes the files, if not one ``model.safetensors``.
        family: what it is made of; with ``form`` of its quantised form.
        text_only: the server has ``--language-model-only``.
    """

    change: Change
    refused: str | None = None
    finish: Finish | None = None
    family: str = "tiny-26b-a4b"
    form: str | None = None
    text_only: bool = False


def _same(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    return tensors


def _renamed(pattern: str, new: str) -> Change:
    return lambda tensors, _config: {re.sub(pattern, new, name): tensor for name, tensor in tensors.items()}


def _without(pattern: str) -> Change:
    return lambda tensors, _config: {name: tensor for name, tensor in tensors.items() if not re.search(pattern, name)}


def _with(names: Mapping[str, str], scale: float = 1.0) -> Change:
    """More tensors, each of another one's values times ``scale``."""
    return lambda tensors, _config: {**tensors, **{new: (tensors[of] * scale).clone() for new, of in names.items()}}


def _configured(change: Change, top: Mapping[str, Any] | None = None, text: Mapping[str, Any] | None = None) -> Change:
    def both(tensors: Tensors, config: dict[str, Any]) -> Tensors:
        config.update(top or {})
        config["text_config"].update(text or {})
        return change(tensors, config)

    return both


def _text_only(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    text = {**config["text_config"], "architectures": ["Gemma4ForCausalLM"]}
    config.clear()
    config.update(text)
    return {name.replace(AT, "model."): tensor for name, tensor in tensors.items() if name.startswith(AT)}


def _other_rows(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    """A head of its own: the embedding's rows in another order, so that every token is another."""
    return {**tensors, "lm_head.weight": tensors[f"{AT}embed_tokens.weight"].flip(0).contiguous()}


def _older(name: str) -> str:
    """As transformers 4 named it."""
    return name.replace(AT, "language_model.model.") if name.startswith(AT) else name.removeprefix("model.")


def _shared_keys(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    """Keys and values also of layers that read another layer's, as trainers may write them."""
    found = dict(tensors)
    for part in ("k_proj", "v_proj", "k_norm"):
        for layer, of in ((5, 0), (6, 0), (9, 4)):
            found[f"{AT}layers.{layer}.self_attn.{part}.weight"] = tensors[f"{AT}layers.{of}.self_attn.{part}.weight"].clone()
    return found


def _of_sglang(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    """As SGLang itself names experts, and some quantised checkpoints do."""
    return {
        name.replace(".experts.", ".moe.experts.").replace(".router.per_expert_scale", ".moe.per_expert_scale"): tensor
        for name, tensor in tensors.items()
    }


def _with_adapter(folder: Path, tensors: Tensors) -> None:
    adapter = {f"base_model.model.{name}": tensors[GATE][:4].clone() for name in LORA}
    _save(folder, {"model.safetensors": tensors, "adapter_model.safetensors": adapter})


def _narrow(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    return {**tensors, UP: tensors[UP][:-16].contiguous()}


def _save(folder: Path, parts: Mapping[str, Tensors]) -> None:
    import safetensors.torch

    for name, tensors in parts.items():
        safetensors.torch.save_file(tensors, folder / name, metadata={"format": "pt"})


def _shards(index: bool, lost: bool, numbered: bool = True) -> Finish:
    """Three files, with an index or without; the second may be lost."""

    def finish(folder: Path, tensors: Tensors) -> None:
        names = sorted(tensors)
        third = -(-len(names) // 3)
        files = [f"model-0000{number}-of-00003.safetensors" if numbered else f"part{number}.safetensors" for number in (1, 2, 3)]
        parts = {
            file: {name: tensors[name] for name in names[start : start + third]}
            for file, start in zip(files, range(0, 3 * third, third), strict=True)
        }
        if index:
            where = {name: file for file, part in parts.items() for name in part}
            (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
        _save(folder, {file: part for file, part in parts.items() if not (lost and file == files[1])})

    return finish


def _broken(change: Callable[[bytes], bytes]) -> Finish:
    def finish(folder: Path, tensors: Tensors) -> None:
        _save(folder, {"model.safetensors": tensors})
        file = folder / "model.safetensors"
        file.write_bytes(change(file.read_bytes()))

    return finish


def _bad_index(folder: Path, tensors: Tensors) -> None:
    _save(folder, {"model.safetensors": tensors})
    (folder / INDEX).write_text('{"weight_map": {"model')


def _pickled(folder: Path, tensors: Tensors) -> None:
    import torch

    torch.save(tensors, folder / "pytorch_model.bin")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4063772\n"
QKV = f"{AT}layers.1.self_attn."
EXPERT = f"{AT}layers.3.experts.2."
LORA = {f"{QKV}q_proj.lora_A.default.weight": f"{QKV}k_proj.weight", f"{QKV}q_proj.lora_B.default.weight": f"{QKV}q_proj.weight"}

VARIANTS: dict[str, Variant] = {
    "released": Variant(_same),
    "text_names_beside_towers": Variant(_renamed(r"^model\.language_model\.", "model.")),
    "text_names_alone": Variant(
        lambda tensors, config: _renamed(r"^model\.language_model\.", "model.")(
            _without(r"^model\.(?:vision|embed)")(tensors, config), config
        ),
        text_only=True,
    ),
    "names_without_a_prefix": Variant(_renamed(r"^model\.language_model\.", ""), text_only=True),
    "older_names": Variant(lambda tensors, _config: {_older(name): tensor for name, tensor in tensors.items()}),
    "text_only": Variant(_text_only),
    "names_of_the_whole_in_a_text_model": Variant(
        lambda tensors, config: {name.replace("model.", AT, 1): one for name, one in _text_only(tensors, config).items()}
    ),
    "three_files_and_an_index": Variant(_same, finish=_shards(index=True, lost=False)),
    "three_files": Variant(_same, finish=_shards(index=False, lost=False)),
    "pickled": Variant(_same, finish=_pickled),
    "head_of_its_own_by_the_top_level": Variant(_configured(_other_rows, {"tie_word_embeddings": False})),
    "head_of_its_own_by_the_text_config": Variant(_configured(_other_rows, {"tie_word_embeddings": False}, {"tie_word_embeddings": False})),
    "head_of_its_own_that_no_config_names": Variant(_other_rows),
    "head_that_is_the_embedding": Variant(_with({"lm_head.weight": f"{AT}embed_tokens.weight"})),
    "untied_by_the_text_config_alone": Variant(_configured(_same, {"tie_word_embeddings": True}, {"tie_word_embeddings": False})),
    "keys_of_shared_layers": Variant(_shared_keys, family="tiny-e2b"),
    "keys_of_shared_layers_without_scales": Variant(_shared_keys, family="tiny-e2b", form="fp8-dynamic"),
    "names_of_sglang_s_experts": Variant(_of_sglang),
    "an_adapter_s_file_beside": Variant(_same, finish=_with_adapter),
    "no_clip_bounds": Variant(_without(r"put_m(?:in|ax)$"), family="tiny-e2b"),
    "no_layer_scalars": Variant(_without("layer_scalar$")),
    "a_value_head_more": Variant(_with({"v_head.summary.weight": f"{AT}norm.weight"})),
    "no_towers_and_none_wanted": Variant(_without(r"^model\.(?:vision|embed)"), text_only=True),
    "no_towers": Variant(_without(r"^model\.(?:vision|embed)"), "add --language-model-only"),
    "one_tensor_of_the_tower": Variant(
        _without(r"vision_tower.*layers\.1\.mlp\.gate"), r"lacks 1 .*vision_tower\.encoder\.layers\.1\.mlp\.gate_proj"
    ),
    "adapter_s_names": Variant(_renamed("^", "base_model.model."), r"adapter's training wrapper.*base_model\.model\."),
    "compiled_names": Variant(_renamed("^", "_orig_mod."), r"compiled model.*_orig_mod"),
    "another_model_s_names": Variant(_renamed(r"^model\.", "transformer.h."), r"none of the model's"),
    "unmerged_adapter": Variant(_renamed(r"(q_proj)\.weight", r"\1.base_layer.weight"), "LoRA adapter that is not merged"),
    "adapter_beside_the_model": Variant(_with(LORA), r"LoRA adapter that is not merged.*lora_A"),
    "a_file_of_the_index_lost": Variant(
        _same, r"lacks model-00002-of-00003\.safetensors, which model\.safetensors\.index", _shards(True, True)
    ),
    "a_counted_file_lost": Variant(_same, r"lacks model-00002-of-00003\.safetensors, which its other files count", _shards(False, True)),
    "a_file_lost": Variant(_same, r"the checkpoint lacks \d+ of the model's", _shards(False, True, numbered=False)),
    "a_pickled_tensor_lost": Variant(_without(re.escape(GATE)), f"lacks 1 .*{re.escape(GATE)}", _pickled),
    "a_pickled_head_that_no_config_names": Variant(_other_rows, r"lm_head\.weight is not the embedding, though", _pickled),
    "no_gate": Variant(_without(re.escape(GATE)), r"lacks 1 .*layers\.2\.mlp\.gate_proj\.weight"),
    "no_up": Variant(_without(re.escape(UP)), r"lacks 1 .*layers\.2\.mlp\.up_proj\.weight"),
    "no_key": Variant(_without(r"language_model.*layers\.1\.self_attn\.k_proj"), r"lacks 1 .*layers\.1\.self_attn\.k_proj\.weight"),
    "no_value": Variant(_without(r"language_model.*layers\.1\.self_attn\.v_proj"), r"lacks 1 .*layers\.1\.self_attn\.v_proj\.weight"),
    "no_norm": Variant(_without(r"layers\.4\.post_attention_layernorm"), r"lacks 1 .*layers\.4\.post_attention_layernorm\.weight"),
    "no_embedding": Variant(_without("embed_tokens"), r"lacks 1 .*embed_tokens\.weight"),
    "no_head": Variant(_configured(_same, {"tie_word_embeddings": False}), r"lacks 1 .*lm_head\.weight, and config\.json says"),
    "no_experts_of_a_layer": Variant(_without(r"layers\.3\.experts\.down_proj"), r"lacks 1 .*layers\.3\.experts\.down_proj"),
    "no_router_scale": Variant(_without(r"layers\.3\.router\.per_expert_scale"), r"lacks 1 .*layers\.3\.router\.per_expert_scale"),
    "one_layer_scalar": Variant(_without(r"layers\.3\.layer_scalar"), r"lacks 1 .*layers\.3\.layer_scalar"),
    "no_layer_embeddings": Variant(_without("embed_tokens_per_layer"), r"lacks 1 .*embed_tokens_per_layer", family="tiny-e2b"),
    "another_shape": Variant(_narrow, r"mlp\.up_proj\.weight has the shape \[\d+, \d+\], and the model of its config\.json \[\d+, \d+\]"),
    "quantised": Variant(_same, form="w4a16-g32"),
    "a_quantised_expert_lost": Variant(
        _without(re.escape(f"{EXPERT}up_proj.")), r"lacks 1 .*layers\.3\.experts\.2\.up_proj\.weight", form="w4a16-g32"
    ),
    "an_expert_s_scale_lost": Variant(
        _without(re.escape(f"{EXPERT}up_proj.weight_scale")), r"has no .*experts\.2\.up_proj\.weight_scale, though it has", form="w4a16-g32"
    ),
    "a_scale_lost": Variant(
        _without(r"layers\.2\.mlp\.up_proj\.weight_scale"), r"has no .*mlp\.up_proj\.weight_scale, though", form="fp8-dynamic"
    ),
    "an_output_s_scale_lost": Variant(
        _without(r"layers\.2\.mlp\.down_proj\.weight_scale"), r"mlp\.down_proj\.weight in quantised", form="fp8-dynamic"
    ),
    "cut_data": Variant(_same, r"cut short: it has \d+ bytes, and its header counts \d+", _broken(lambda content: content[:-1000])),
    "cut_header": Variant(_same, r"cut short: 500 bytes are less than its header", _broken(lambda content: content[:500])),
    "empty_file": Variant(_same, r"cut short: 0 bytes", _broken(lambda _: b"")),
    "a_web_page": Variant(_same, r"cut short|none of safetensors", _broken(lambda _: b"<!DOCTYPE html><html>" + b" " * 4000)),
    "a_pointer_of_git_lfs": Variant(_same, r"pointer of Git LFS", _broken(lambda _: POINTER)),
    "index_that_is_no_json": Variant(_same, r"index\.json is not valid JSON", _bad_index),
    "assistant": Variant(_same, family="tiny-e2b-assistant"),
    "assistant_without_projection": Variant(_without("^pre_projection"), r"lacks 1 .*pre_projection\.weight", family="tiny-e2b-assistant"),
    "assistant_without_centroids": Variant(_without("token_ordering"), r"lacks 1 .*token_ordering", family="tiny-e2b-assistant"),
    "assistant_without_a_gate": Variant(
        _without(r"layers\.1\.mlp\.gate"), r"lacks 1 .*layers\.1\.mlp\.gate_proj", family="tiny-e2b-assistant"
    ),
    "assistant_s_adapter_names": Variant(_renamed("^", "base_model.model."), "adapter's training wrapper", family="tiny-e2b-assistant"),
}


def write(name: str, folder: Path) -> Path:
    """Write a variant to ``folder``; returns it."""
    import safetensors.torch

    variant = VARIANTS[name]
    source = checkpoints.SHIPPED / variant.family
    if variant.form is not None:
        checkpoints.write(variant.family, str(folder), quantised=variant.form)
        shutil.rmtree(folder.with_name(f"{folder.name}-assistant"))
    else:
        shutil.copytree(source, folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    tensors = variant.change(tensors, config)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    if variant.finish is None:
        _save(folder, {"model.safetensors": tensors})
    else:
        variant.finish(folder, tensors)
    return folder
