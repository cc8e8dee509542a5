"""Tiny random drafts of EAGLE-3's, DFlash's and DSpark's published shapes, with keys and values of their own.

Their last tokens are not all random, so that some drafts are accepted: DFlash's leans towards the token whose embedding masks its block,
EAGLE-3's towards the token that it reads. ``large`` writes drafts of large models, for random weights.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.harness.oracles.reference import CHECKPOINTS

Shapes = dict[str, tuple[int, ...]]
HEAD = 32
LARGE_HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
RANK = 16
"""Rank of DSpark's Markov head."""
STRENGTH = 0.05
"""Standard deviation of random weights."""


def eagle3(folder: Path, target: str) -> Path:
    """A draft of one Llama layer that reads three layers of ``target``, a tiny checkpoint's name; written to ``folder``."""
    text, table = _target(target)
    hidden, vocabulary, layers = text["hidden_size"], text["vocab_size"], text["num_hidden_layers"]
    own = _eagle3_config(text, [0, layers // 2, layers - 2], vocabulary)
    shapes: Shapes = {"fc.weight": (hidden, 3 * hidden), "norm.weight": (hidden,), "midlayer.hidden_norm.weight": (hidden,)}
    shapes |= _layer("midlayer.", hidden, own, inputs=2 * hidden)
    weights = _random(shapes)
    weights["fc.weight"][:, :hidden] += torch.eye(hidden)
    return _write(folder, own, {**weights, "lm_head.weight": table.clone()})


def dflash(folder: Path, target: str, *, block: int = 16, window: int = 32, mask: int = 280) -> Path:
    """A draft of two Qwen layers, one sliding and causal, one that sees its whole block; it reads six layers of ``target``.

    Args:
        window: keys of the sliding layer.
        mask: token that stands in the places to be drafted.
    """
    text, _ = _target(target)
    hidden, layers = text["hidden_size"], text["num_hidden_layers"]
    read = [round(number * (layers - 1) / 5) for number in range(6)]
    own = _dflash_config(text, read, layers=2, window=window, block=block, mask=mask)
    shapes: Shapes = {"fc.weight": (hidden, len(read) * hidden), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for number in range(2):
        shapes |= _layer(f"layers.{number}.", hidden, own, inputs=hidden)
        shapes |= {f"layers.{number}.self_attn.{name}_norm.weight": (HEAD,) for name in "qk"}
    return _write(folder, own, _random(shapes))


def dspark(folder: Path, target: str, *, block: int = 7, mask: int = 280) -> Path:
    """A draft of DeepSpec's layout for Gemma 4: three dense layers of the target's full attention, and a Markov head; it reads four layers.

    Args:
        block: tokens that it proposes.
        mask: token that stands in the places to be drafted.
    """
    text, table = _target(target)
    hidden, layers, count, heads = text["hidden_size"], text["num_hidden_layers"], 3, text["num_attention_heads"]
    read = [round(number * (layers - 2) / 3) for number in range(4)]
    full = {"num_key_value_heads": text["num_key_value_heads"], **text["per_layer_config"][str(layers - 1)]}
    one, kv = full["head_dim"], full["num_key_value_heads"]
    own = {
        **_dspark_config(text, read, layers=count, block=block, mask=mask, rank=RANK),
        "global_head_dim": one,
        "num_global_key_value_heads": kv if text["attention_k_eq_v"] else None,
        "rope_parameters": {**text["rope_parameters"], "rope_theta": None, "rope_type": "default"},  # so DeepSpec writes it
    }
    shapes: Shapes = {"fc.weight": (hidden, len(read) * hidden), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    shapes |= {"markov_head.markov_w1.weight": (len(table), RANK), "markov_head.markov_w2.weight": (len(table), RANK)}
    shapes |= {"confidence_head.proj.weight": (1, hidden + RANK), "confidence_head.proj.bias": (1,)}
    for number in range(count):
        layer, wide = f"layers.{number}.", text["intermediate_size"]
        rows = {"q": heads * one, "k": kv * one} | ({} if text["attention_k_eq_v"] else {"v": kv * one})
        shapes |= {f"{layer}self_attn.{name}_proj.weight": (size, hidden) for name, size in rows.items()}
        shapes |= {f"{layer}self_attn.o_proj.weight": (hidden, heads * one), f"{layer}mlp.down_proj.weight": (hidden, wide)}
        shapes |= {f"{layer}mlp.{name}_proj.weight": (wide, hidden) for name in ("gate", "up")}
        shapes |= {f"{layer}self_attn.{name}_norm.weight": (one,) for name in "qk"}
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        shapes |= {f"{layer}{name}_layernorm.weight": (hidden,) for name in norms} | {f"{layer}layer_scalar": (1,)}
    weights = _random(shapes)
    generator = torch.Generator().manual_seed(1)
    for value in weights.values():
        if value.dim() == 1:  # norms and scalars that are not an identity
            value += 0.2 * torch.randn(value.shape, generator=generator)
    return _write(folder, own, {**weights, "embed_tokens.weight": table.clone(), "lm_head.weight": table.clone()})


def large(folder: Path, algorithm: str, target: dict[str, Any]) -> Path:
    """A draft's config.json alone, for ``--load-format dummy``; for 26B-A4B DFlash's has 0.43 billion parameters.

    Args:
        algorithm: "EAGLE3", "DFLASH" or "DSPARK".
        target: config.json of a released size.
    """
    text = target["text_config"]
    hidden, layers = text["hidden_size"], text["num_hidden_layers"]
    if algorithm == "DSPARK":
        read = [1 + round(number * (layers - 4) / 4) for number in range(5)]
        return _write(folder, _dspark_config(text, read, layers=5, block=7, mask=4, rank=256))
    if algorithm == "EAGLE3":
        own = _eagle3_config(text, [1, layers // 2 - 1, layers - 4], vocabulary=32_000) | {"intermediate_size": 3 * hidden}
    else:
        read = [1 + round(number * (layers - 4) / 5) for number in range(6)]
        own = _dflash_config(text, read, layers=6, window=2048, block=16, mask=4) | {"intermediate_size": hidden * 3 // 2}
    return _write(folder, own | LARGE_HEADS)


def _eagle3_config(text: dict[str, Any], read: list[int], vocabulary: int) -> dict[str, Any]:
    """config.json of a draft that reads hidden states of the target's layers ``read`` and proposes the first ``vocabulary`` tokens."""
    return _config("LlamaForCausalLMEagle3", "llama", text) | {
        "num_hidden_layers": 1,
        "draft_vocab_size": vocabulary,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": read},
    }


def _dflash_config(text: dict[str, Any], read: list[int], *, layers: int, window: int, block: int, mask: int) -> dict[str, Any]:
    """config.json of a draft whose layers all slide, but the last."""
    return _config("DFlashDraftModel", "qwen3", text) | {
        "num_hidden_layers": layers,
        "layer_types": ["sliding_attention"] * (layers - 1) + ["full_attention"],
        "sliding_window": window,
        "use_sliding_window": True,
        "block_size": block,
        "num_target_layers": text["num_hidden_layers"],
        "dflash_config": {"target_layer_ids": read, "mask_token_id": mask},
    }


def _dspark_config(text: dict[str, Any], read: list[int], *, layers: int, block: int, mask: int, rank: int) -> dict[str, Any]:
    """config.json of a draft in DeepSpec's spelling: the target's own text settings, and how the draft differs."""
    return {
        **{key: value for key, value in text.items() if key != "per_layer_config"},
        "architectures": ["Gemma4DSparkModel"],
        "model_type": "gemma4_text",
        "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": False,
        "tie_word_embeddings": False,
        "block_size": block,
        "num_target_layers": text["num_hidden_layers"],
        "target_layer_ids": read,
        "mask_token_id": mask,
        "dtype": "bfloat16",
        "markov_rank": rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


def _target(name: str) -> tuple[dict[str, Any], torch.Tensor]:
    """The text config of a tiny checkpoint, and its embeddings [tokens, hidden]."""
    config = json.loads((CHECKPOINTS / name / "config.json").read_text())
    weights = load_file(next((CHECKPOINTS / name).glob("*.safetensors")))
    return config["text_config"], next(
        value for key, value in weights.items() if key.endswith("language_model.embed_tokens.weight")
    ).float()


def _config(architecture: str, model_type: str, text: dict[str, Any]) -> dict[str, Any]:
    hidden = text["hidden_size"]
    given = {"rms_norm_eps": 1e-6, "bos_token_id": 2, "eos_token_id": 1, **text}  # a released size leaves transformers' defaults out
    same = {name: given[name] for name in ("hidden_size", "vocab_size", "max_position_embeddings", "rms_norm_eps", "bos_token_id")}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": HEAD, "intermediate_size": 2 * hidden, "hidden_act": "silu"}
    return {
        "architectures": [architecture],
        "model_type": model_type,
        **same,
        **heads,
        "eos_token_id": given["eos_token_id"],
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def _layer(prefix: str, hidden: int, own: dict[str, Any], inputs: int) -> Shapes:
    """A decoder layer whose attention reads ``inputs`` numbers a token."""
    rows = {"q": own["num_attention_heads"] * HEAD, "k": own["num_key_value_heads"] * HEAD, "v": own["num_key_value_heads"] * HEAD}
    wide = own["intermediate_size"]
    shapes: Shapes = {f"{prefix}self_attn.{name}_proj.weight": (count, inputs) for name, count in rows.items()}
    shapes |= {f"{prefix}self_attn.o_proj.weight": (hidden, rows["q"]), f"{prefix}mlp.down_proj.weight": (hidden, wide)}
    shapes |= {f"{prefix}mlp.{name}_proj.weight": (wide, hidden) for name in ("gate", "up")}
    return shapes | {f"{prefix}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}


def _random(shapes: Shapes) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.ones(shape) if len(shape) == 1 else STRENGTH * torch.randn(shape, generator=generator) for name, shape in shapes.items()
    }


def _write(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if weights is not None:
        save_file(weights, folder / "model.safetensors")
    return folder
