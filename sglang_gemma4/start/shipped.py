"""Lists of kernels that come with the package, for the first start of a model on a machine: find one, or make one.

A list names kernels and what Triton specialises them by (``manifest``). It is recorded on one GPU and fits all of the
same compute capability. If it is older than the sources, it is compiled as far as it still fits; the rest is logged
and costs nothing else. ``python -m sglang_gemma4.start.shipped KEPT MODEL LIST`` makes one of what a start kept.
"""

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "lists"
FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "num_experts")
"""Fields of a text config that distinguish the models."""
OF_WEIGHTS = ("num_bits", "type", "strategy", "group_size", "symmetric", "dynamic")
"""Fields of a group's weights and activations in a ``quantization_config`` that are compared."""
ORDINARY = {"tp_size": "1", "quantization": "None", "kv_cache_dtype": "auto", "disaggregation_mode": "null"}
"""Flags with which the lists were recorded; with others most kernels would be compiled in vain."""


def fits(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a list says of the model with which it was recorded.

    A running server's config has the full layers' size as ``head_dim``, and the sliding layers' as ``swa_head_dim``.
    Without the latter no list was found on an H100 (``runs/2026-11-25-26b-h100-beside``).
    """
    text = config.get("text_config") or config
    found = {name: text.get(name) for name in FIELDS} | {"head_dim": text.get("swa_head_dim") or text.get("head_dim")}
    return found | {"weights": _weights(config.get("quantization_config"))}


def _weights(config: Any) -> Any:
    """The format of quantised weights as JSON-ready data; None for unquantised ones. Ignored layers are not compared.

    A group may be a list of layers under a preset's name; such formats have no list here.
    """
    if not config:
        return None
    if not isinstance(config, Mapping) or not all(isinstance(group, Mapping) for group in (config.get("config_groups") or {}).values()):
        return str(config)
    groups = (config.get("config_groups") or {}).values()
    told = [
        {part: {name: group[part].get(name) for name in OF_WEIGHTS} for part in ("weights", "input_activations") if group.get(part)}
        for group in groups
    ]
    return [str(config.get("quant_method")), *sorted(told, key=str)]


def find(config: Mapping[str, Any], flags: Mapping[str, str], capability: int) -> Path | None:
    """The list for a model's config, a server's flags and a GPU's compute capability (90 for 9.0), or None."""
    if any(flags.get(name) != value for name, value in ORDINARY.items()):
        return None
    wanted = {"fits": fits(config), "capability": capability}
    return next((path for path in sorted(FOLDER.glob("*.json.gz")) if {name: read(path)[name] for name in wanted} == wanted), None)


def read(path: Path) -> dict[str, Any]:
    """Read a list: ``fits``, ``capability`` and ``entries``.

    Raises:
        OSError, ValueError: it is no such file.
    """
    found = json.loads(gzip.decompress(path.read_bytes()))
    return dict(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Make a list from what a start kept."""
    form = argparse.ArgumentParser(prog="python -m sglang_gemma4.start.shipped", description=str(__doc__).partition("\n")[0])
    form.add_argument("kept", type=Path, metavar="KEPT", help="a kernels-*.json from the folder that SGLANG_GEMMA4_CACHE_DIR names")
    form.add_argument("model", type=Path, metavar="MODEL", help="the checkpoint directory of that start")
    form.add_argument("list", type=Path, metavar="LIST", help="the .json.gz to write")
    given = form.parse_args(argv)
    entries = json.loads(given.kept.read_text())["value"]["entries"]
    capabilities = {entry["target"][1] for entry in entries}
    if len(capabilities) != 1:
        form.error(f"{given.kept} has kernels for the compute capabilities {sorted(capabilities)}; a list is for one")
    value = {"fits": fits(json.loads((given.model / "config.json").read_text())), "capability": capabilities.pop(), "entries": entries}
    given.list.write_bytes(gzip.compress(json.dumps(value).encode(), mtime=0))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
