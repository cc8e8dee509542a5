"""Refuses rank counts that do not divide a Gemma 4 model's heads or widths; SGLang asserts them without a message.

Neither torch nor sglang is imported.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_gemma4.diagnostics.text_geometry import text_geometry
from sglang_gemma4.diagnostics.value_limits import number

FIELDS = ("tp_size", "attn_dp_size", "dp_size", "enable_dp_attention", "language_model_only", "mm_enable_dp_encoder")
"""The arguments that :func:`problems` reads."""
MOST = 64
"""The largest rank count that the message suggests."""


def problems(config: dict[str, Any], arguments: Mapping[str, Any]) -> Iterator[str]:
    """What ``--tp-size`` ranks cannot split in a model with this ``config``, as one line."""
    ranks = int(number(arguments.get("tp_size")) or 1)
    name = "dp_size" if arguments.get("enable_dp_attention") else "attn_dp_size"
    replicas = max(1, int(number(arguments.get(name)) or 1))
    images = not (arguments.get("language_model_only") or arguments.get("mm_enable_dp_encoder"))
    if replicas > ranks > 1:
        yield f"--tp-size {ranks} is below --{name.replace('_', '-')} {replicas}; give --tp-size {replicas} or a multiple of it"
        return
    if ranks > 1 and (what := _undivided(config, ranks, replicas, images)):
        fitting = [str(size) for size in range(replicas, MOST + 1, replicas) if not _undivided(config, size, replicas, images)]
        yield f"--tp-size {ranks} does not divide {what}; use one of {', '.join(fitting)}"


def _undivided(config: dict[str, Any], ranks: int, replicas: int, images: bool) -> str | None:
    """The first size that ``ranks`` do not divide, or None; attention is split only over the ranks of each replica."""
    text, each = config.get("text_config") or config, ranks // replicas
    sizes = [("attention heads", text.get("num_attention_heads"), each), ("intermediate_size", text.get("intermediate_size"), ranks)]
    sizes += [("moe_intermediate_size", text.get("moe_intermediate_size") if text.get("enable_moe_block") else None, ranks)]
    sizes += [("attention heads of the vision tower", (config.get("vision_config") or {}).get("num_attention_heads"), each)] * images
    for what, size, over in sizes:
        if size and int(size) % over:
            return f"the model's {size} {what}" if "heads" in what else f"the model's {what} of {size}"
    for kind, layer in text_geometry(config).layers.items():
        if layer.kv_heads % each and each % layer.kv_heads:  # fewer heads than ranks are copied
            return f"the {layer.kv_heads} KV heads of its {kind} layers"
    return None
