"""A head of its own that only config.json's top level names is dropped. Needs no GPU.

SGLang asks ``text_config``, where transformers asks the top level.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import case  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

TOKENS = 12
MODEL = "tiny-31b"


def main() -> int:
    """Greedy tokens against transformers'; the head's rows are the embedding's in another order, so that every token is another."""
    with tempfile.TemporaryDirectory() as folder:
        model = write(Path(folder) / "model")
        expected = shipped.greedy(shipped.load(model), case.PROMPTS, TOKENS)
        seen = case.generate(model, tokens=TOKENS)
    return int(case.verdict(expected, seen))


def write(folder: Path) -> Path:
    """The checkpoint that ships with such a head."""
    import safetensors.torch

    shutil.copytree(shipped.target(MODEL), folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.language_model.embed_tokens.weight"].flip(0).contiguous()
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return folder


if __name__ == "__main__":
    sys.exit(main())
