"""Fills tiny-12b's target and assistant with tiny-31b's weights, which have fewer heads; answers to text stay the same.

A new head is a copy of an old one and reads the copy of the old KV head; copies split the old head's output
unequally. A little noise on queries and keys separates the copies, so that training can make them differ.
"""

from typing import Any

SOURCE = "tiny-31b"
NOISE = 0.02


def fill(model: Any, source: Any, seed: int) -> None:
    """Fill ``model``'s language model (or assistant) in place from ``source``, which has fewer heads; parts that only ``model`` has stay.

    Raises:
        ValueError: a parameter's shape differs for another reason than the number of heads.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    given = {name: tensor for name, tensor in source.state_dict().items() if not name.endswith("inv_freq")}
    counts = heads_of(model), heads_of(source)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name not in given:
                continue
            old, layer = given[name], name.split("layers.")[-1].split(".")[0]
            if ".q_proj." in name or ".k_proj." in name or ".v_proj." in name or ".o_proj." in name:
                (heads, kv), (old_heads, old_kv) = counts[0][int(layer)], counts[1][int(layer)]
                chosen = _copied(heads, kv, old_heads, old_kv) if ".q_proj." in name or ".o_proj." in name else _spread(kv, old_kv)
                old = _outputs(old, chosen, old_heads, generator) if ".o_proj." in name else _rows(old, chosen, generator)
            if old.shape != tensor.shape:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, {SOURCE}'s {tuple(old.shape)}, which heads do not explain")
            tensor.copy_(old)


def heads_of(model: Any) -> list[tuple[int, int]]:
    """(query heads, KV heads) of each layer of a transformers model."""
    text = model.config.text_config
    return [(text.num_attention_heads, text.per_layer_config[number].num_key_value_heads) for number in range(text.num_hidden_layers)]


def _spread(kv: int, old_kv: int) -> list[int]:
    return [number * old_kv // kv for number in range(kv)]


def _copied(heads: int, kv: int, old_heads: int, old_kv: int) -> list[int]:
    """The old query head that each new one copies: in the group of the old KV head that the new one's KV head copies."""
    group, old_group, spread = heads // kv, old_heads // old_kv, _spread(kv, old_kv)
    return [spread[head // group] * old_group + head % group * old_group // group for head in range(heads)]


def _rows(old: Any, chosen: list[int], generator: Any) -> Any:
    """Rows [heads * size, width] of the chosen heads, with noise."""
    import torch

    size = old.shape[0] // (max(chosen) + 1)
    out = old.unflatten(0, (-1, size))[chosen].flatten(0, 1)
    return out * (1 + NOISE * torch.randn(out.shape, generator=generator))


def _outputs(old: Any, chosen: list[int], old_heads: int, generator: Any) -> Any:
    """Columns [width, heads * size] of the chosen heads; the copies of an old head add up to it."""
    import torch

    share = 0.5 + torch.rand(len(chosen), generator=generator)
    sums = torch.zeros(old_heads).index_add_(0, torch.tensor(chosen), share)
    out = old.unflatten(1, (old_heads, -1))[:, chosen] * (share / sums[chosen])[:, None]
    return out.flatten(1, 2)
