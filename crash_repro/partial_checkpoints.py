"""Checkpoints whose tensors do not arrive are served: other names, and a fused layer of which one part is missing. Needs no GPU."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import case  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

TOKENS = 12
MODEL = "tiny-31b"
LOST = "layers.2.mlp.gate_proj"


def main() -> int:
    """Text-only names beside a multimodal config have transformers' tokens; a checkpoint without one ``gate_proj`` does not start."""
    expected = shipped.greedy(shipped.load(MODEL), case.PROMPTS, TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        other_names = write(Path(folder) / "names", lambda name: name.replace("model.language_model.", "model."))
        partial = write(Path(folder) / "partial", lambda name: None if LOST in name else name)
        print("--- text-only names")
        status = case.verdict(expected, case.generate(other_names, tokens=TOKENS))
        print(f"--- without {LOST}")
        seen = case.generate(partial, tokens=TOKENS)
    refused = isinstance(seen, str) and "lacks 1 of the model's" in seen and LOST in seen
    return int(status | case.verdict("a refusal", "a refusal" if refused else seen))


def write(folder: Path, named: Any) -> Path:
    """The checkpoint that ships, each tensor by another name, or left out."""
    import shutil

    import safetensors.torch

    shutil.copytree(shipped.target(MODEL), folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    kept = {named(name): tensor for name, tensor in tensors.items() if named(name)}
    safetensors.torch.save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


if __name__ == "__main__":
    sys.exit(main())
