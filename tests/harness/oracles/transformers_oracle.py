"""Greedy decoding by transformers in a process of its own: what SGLang's tokens are compared with.

    python transformers_oracle.py REQUEST.json ANSWER.json

REQUEST holds ``model`` (a directory), ``dtype``, ``new_tokens`` and ``prompts``, each with ``text``, ``images`` and, where there are any,
``sounds`` of 16 kHz, ``heard``, sounds of any rate, and ``videos``, which transformers loads itself (paths). ANSWER has, for each prompt,
``input_ids``, ``token_ids`` and ``logprobs`` (natural logarithm, of each new token, among those that the checkpoint does not suppress), and
``margin``, the smallest distance between the best and the second-best logit on the way.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Greedy:
    """What transformers decodes for one prompt."""

    input_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    margin: float


def decode(model: Path, prompts: Sequence[dict[str, Any]], new_tokens: int, folder: Path, dtype: str = "float32") -> list[Greedy]:
    """Run this file on the prompts; ``folder`` keeps request and answer."""
    request, answer = folder / f"request-{dtype}.json", folder / f"answer-{dtype}.json"
    request.write_text(json.dumps({"model": str(model), "dtype": dtype, "new_tokens": new_tokens, "prompts": list(prompts)}))
    subprocess.run([sys.executable, __file__, str(request), str(answer)], check=True)
    return [Greedy(**one) for one in json.loads(answer.read_text())]


def see_the_whole_context() -> None:
    """Make transformers' audio tower attend to ``attention_context_left`` frames, the frame itself among them: 13.

    transformers 5.19 leaves out the first of them (``dist < left_window_size`` of one less). The model's first implementation has all 13
    (google-deepmind/gemma, gm/nn/gemma4/audio), and so has SGLang.
    """
    from transformers.models.gemma4 import modeling_gemma4 as modeling

    exclusive: Any = modeling.sliding_window_mask_function
    modeling.sliding_window_mask_function = lambda window: exclusive((window[0] + 1, window[1]))


def main() -> None:
    """Answer one request."""
    import soundfile  # type: ignore[import-untyped]
    import torch
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor

    torch.set_num_threads(1)
    see_the_whole_context()
    request = json.loads(Path(sys.argv[1]).read_text())
    processor = AutoProcessor.from_pretrained(request["model"])
    model = AutoModelForImageTextToText.from_pretrained(request["model"], dtype=getattr(torch, request["dtype"])).eval()
    model.generation_config.eos_token_id = None  # decode the full length, as the engine does with ignore_eos
    answers = []
    for prompt in request["prompts"]:
        images = [Image.open(path).convert("RGB") for path in prompt["images"]]
        options: dict[str, Any] = {"images": [images]} if images else {}
        if prompt.get("sounds"):
            options["audio"] = [soundfile.read(path)[0].astype("float32") for path in prompt["sounds"]]
        if prompt.get("heard"):
            options["audio"] = prompt["heard"]
        if prompt.get("videos"):
            options["videos"] = prompt["videos"]
        inputs = processor(text=[prompt["text"]], return_tensors="pt", add_special_tokens=False, **options)
        with torch.inference_mode():
            done = model.generate(
                **inputs, do_sample=False, max_new_tokens=request["new_tokens"], return_dict_in_generate=True, output_scores=True
            )
        length = inputs["input_ids"].shape[1]
        new = done.sequences[0, length:]
        logits = torch.stack([step[0] for step in done.scores]).float()  # [new_tokens, vocabulary]
        best = logits.topk(2).values
        answers.append(
            {
                "input_ids": inputs["input_ids"][0].tolist(),
                "token_ids": new.tolist(),
                "logprobs": logits.log_softmax(-1).gather(1, new[:, None])[:, 0].tolist(),
                "margin": (best[:, 0] - best[:, 1]).min().item(),
            }
        )
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
