"""A prompt given as embeddings, with --disable-radix-cache as SGLang's documentation says, ends the scheduler. Needs no GPU."""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

FAMILY = "tiny-26b-a4b"


def main() -> int:
    """Tokens after the embeddings of prompts, alone and beside a prompt of ids; those after the ids are transformers'."""
    model, prompts = shipped.load(FAMILY), case.PROMPTS
    expected = shipped.greedy(model, prompts, 8)
    embeddings = [_embed(model, prompt) for prompt in prompts]
    seen = engines.ask(
        shipped.target(FAMILY), "input_embeds:answers", {"embeddings": embeddings, "ids": prompts[0]}, disable_radix_cache=True
    )
    return int(case.verdict([*expected, expected[1], expected[0]], seen))


def _embed(model: Any, prompt: list[int]) -> Any:
    """What transformers takes as ``inputs_embeds``."""
    import torch

    with torch.inference_mode():
        return model.get_input_embeddings()(torch.tensor(prompt)).tolist()


def answers(engine: Any, extra: Any) -> list[list[int]]:
    """The client: the embeddings as a batch, then one prompt of embeddings beside one of ids."""
    import asyncio

    from sglang.srt.managers.io_struct import GenerateReqInput

    sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}

    async def send(**prompt: Any) -> Any:
        return await engine.tokenizer_manager.generate_request(GenerateReqInput(**prompt, sampling_params=sampling), None).__anext__()

    async def both() -> list[Any]:
        return list(await asyncio.gather(send(input_embeds=extra["embeddings"][1]), send(input_ids=extra["ids"])))

    found = engine.loop.run_until_complete(send(input_embeds=extra["embeddings"])) + engine.loop.run_until_complete(both())
    return [one["output_ids"] for one in found]


if __name__ == "__main__":
    sys.exit(main())
