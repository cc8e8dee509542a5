"""Whether an engine under ``--enable-deterministic-inference`` gives a request the same bits in every batch, and how fast it decodes.

    python -m tests.gpu.deterministic MODEL OUT.json [--tokens N] [--flags JSON]

One request is sent alone, then among 1, 7, 31 and 79 others of random length, that are new each time. OUT has for each batch: whether its
token ids and the bits of their log-probabilities are those of the first time, where they first differ, and tokens a second.
``SGLANG_GEMMA4=0`` is stock. The server's images are left out, since SGLang's kernel of this mode cannot mask them.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

BATCHES = (1, 1, 2, 8, 32, 80, 1)
OURS = 700
"""Tokens of the request that is watched."""


def first_difference(one: list[Any], other: list[Any]) -> int | None:
    """The first place at which two answers differ; None where they do not."""
    places = (place for place, (mine, its) in enumerate(zip(one, other, strict=False)) if mine != its)
    return next(places, None if len(one) == len(other) else min(len(one), len(other)))


def main() -> None:
    """Run the batches, write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--flags", type=json.loads, default={})
    given = parser.parse_args()
    import sglang

    flags = {
        "skip_tokenizer_init": True, "attention_backend": "triton", "sampling_backend": "pytorch", "mem_fraction_static": 0.8,
        "context_length": 4096, "random_seed": 0, "language_model_only": True, "enable_deterministic_inference": True,
        "disable_radix_cache": True, "log_level": "info",
    }  # fmt: skip
    engine = sglang.Engine(model_path=given.model, **{**flags, **given.flags})
    config = json.loads((Path(given.model) / "config.json").read_text())
    most = config.get("text_config", config)["vocab_size"] - 300
    rng = random.Random(0)
    watched, rows, first = rng.choices(range(300, most), k=OURS), [], None
    for batch in BATCHES:
        prompts = [watched, *(rng.choices(range(300, most), k=rng.randint(50, 2000)) for _ in range(batch - 1))]
        sampling = {"temperature": 0, "max_new_tokens": given.tokens, "ignore_eos": True}
        began = time.monotonic()
        answer = engine.generate(input_ids=prompts, sampling_params=sampling, return_logprob=True)[0]
        seconds = time.monotonic() - began
        seen = [[token, logprob] for logprob, token, _ in answer["meta_info"]["output_token_logprobs"]]
        first = first or seen
        differs = first_difference(first, seen)
        rows.append({"batch": batch, "same": differs is None, "differs_at": differs, "tokens_per_s": batch * given.tokens / seconds})
        print(json.dumps(rows[-1]), flush=True)
    given.out.write_text(json.dumps({"model": Path(given.model).name, "tokens": given.tokens, "batches": rows}))
    engine.shutdown()


if __name__ == "__main__":
    main()
