"""LoRA's buffers have one size for all layers: full attention's, and the narrow FFN's. Needs no GPU.

Stock asks Gemma 4's multimodal class for sizes by attributes that its config does not have. Asked by the text-only class's config, whose
names are SGLang's own, it sizes every layer as a full one, and the scheduler ends at the first request. Of a MoE layer's FFNs it has
buffers for the experts' alone.
"""

import sys
import tempfile
from pathlib import Path

import adapted  # type: ignore[import-not-found]
import case  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]


def main() -> int:
    """The engine's tokens with an adapter beside one without, against transformers' with merged weights."""
    with tempfile.TemporaryDirectory() as folder:
        print("--- text-only, outputs of attention")
        model = case.text_model()
        path = case.save(model, Path(folder) / "model")
        status = case.verdict(*adapted.answers(model, path, Path(folder) / "one", ["o_proj"]))
        for family in ("tiny-e2b", "tiny-26b-a4b"):
            print(f"--- {family}, the dense FFN")
            given = shipped.load(family), shipped.target(family), Path(folder) / family
            status |= case.verdict(*adapted.answers(*given, ["gate_proj", "up_proj", "down_proj"]))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
