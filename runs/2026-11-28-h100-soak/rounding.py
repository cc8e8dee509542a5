"""How often rounding alone gives the tokens that the soak found: transformers on a CPU, ``python rounding.py > rounding.txt``.

``answers.json`` has the answers that left their reference by more than a near tie. A line for each says how far its first other token
is from the best one in float32 and in bfloat16 (natural logarithms), and which tokens are best in 150 float32 passes where every module
of the language model gives its output with the relative error of bfloat16 (normal, of a rounding's size), and with three times that.
"""

import collections
import json
from pathlib import Path
from typing import Any

import torch
import transformers

from sglang_gemma4.serving.launch import resolve
from tests.gpu.soak import prompts_of, shared

ROUNDING, PASSES = 2**-9 / 1.7, 150
MODULES = {"Linear", "Gemma4RMSNorm", *(f"Gemma4Text{name}" for name in ("Attention", "DecoderLayer", "Experts", "MLP", "Router"))}


def main() -> None:
    cases = json.loads((Path(__file__).parent / "answers.json").read_text())
    prompts = prompts_of("tiny-26b-a4b", 160)
    size = 0.0

    def rounded(_module: Any, _inputs: Any, output: Any) -> Any:
        first, *rest = output if isinstance(output, tuple) else (output,)
        moved = first * (1 + size * torch.randn_like(first)) if first.is_floating_point() else first
        return (moved, *rest) if isinstance(output, tuple) else moved

    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model = transformers.AutoModelForImageTextToText.from_pretrained(resolve("tiny-26b-a4b"), dtype=dtype).eval()
        noise = (0.0,) if dtype == torch.bfloat16 else (0.0, 1.0, 3.0)
        for module in model.model.language_model.modules():
            if type(module).__name__ in MODULES:
                module.register_forward_hook(rounded)
        for case in cases:
            place = shared(case["found"], case["reference"])
            ids = torch.tensor([prompts[case["prompt"]] + case["found"][:place]])
            for times in noise:
                size, best, far = times * ROUNDING, collections.Counter[int](), list[float]()
                for _ in range(PASSES if times else 1):
                    with torch.no_grad():
                        scores = model(input_ids=ids).logits[0, -1].float().log_softmax(-1)
                    best[int(scores.argmax())] += 1
                    far.append(float(scores.max() - scores[case["found"][place]]))
                print(
                    f"prompt {case['prompt']}, token {place}, {case['times']} x: {case['found'][place]} for {case['reference'][place]}; "
                    f"{str(dtype)[6:]}, rounding x {times:g}: best {dict(best)}, found is {min(far):.2f} to {max(far):.2f} below"
                )


if __name__ == "__main__":
    main()
