"""After a weight update a picture that was asked about before is still seen by the old vision tower. Needs no GPU."""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

CLOSE = 1e-4
"""Of a log-probability in float32, between two engines."""


def main() -> int:
    """The log-probability of the first token after an image: of a server that was updated, and of one started with those weights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        question = {"text": shipped.IMAGE_TEXT, "images": [str(shipped.draw(folder))]}
        other = other_tower(folder / "other")
        extra = {**question, "updated": str(other)}
        seen = engines.ask(shipped.target(), "image_cache_update:before_and_after", extra, skip_tokenizer_init=False)
        fresh = engines.ask(other, "shipped:ask_about_images", question, skip_tokenizer_init=False)
    print(f"log-probabilities before and after the update: {seen}; of a server started with the new weights: {fresh}")
    right = isinstance(seen, list) and abs(seen[0] - seen[1]) > CLOSE and abs(seen[1] - fresh[0]) <= CLOSE
    return int(case.verdict("that of the new weights", "that of the new weights" if right else f"another: {seen}"))


def other_tower(folder: Path) -> Path:
    """E2B's checkpoint with another vision tower."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(shipped.target(), folder)
    tensors, generator = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(0)
    for key, tensor in tensors.items():
        if "vision_tower" in key and key.endswith("weight"):
            tensors[key] = (tensor.float() * (1 + 0.2 * torch.randn(tensor.shape, generator=generator))).to(tensor.dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def before_and_after(engine: Any, extra: dict[str, Any]) -> list[float]:
    """The client."""
    before = shipped.ask_about_images(engine, extra)
    engine.loop.run_until_complete(engine.tokenizer_manager.flush_cache(timeout_s=30.0))
    engine.update_weights_from_disk(extra["updated"])
    return [*before, *shipped.ask_about_images(engine, extra)]


if __name__ == "__main__":
    sys.exit(main())
