"""Ask an engine with embeddings in place of ids, whole prompts and single positions: ``client="given_embeddings:answers"``."""

import asyncio
from typing import Any


def answers(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """Two prompts of embeddings at once; one beside one of ids; ids of which some positions are those of other tokens, overwritten."""
    import torch
    from sglang.srt.managers.embed_types import PositionalEmbeds
    from sglang.srt.managers.io_struct import GenerateReqInput

    embeddings, ids = group["extra"]["embeddings"], group["extra"]["ids"]
    sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}

    async def send(**prompt: Any) -> Any:
        return await engine.tokenizer_manager.generate_request(GenerateReqInput(**prompt, sampling_params=sampling), None).__anext__()

    async def both() -> list[Any]:
        return list(await asyncio.gather(send(input_ids=ids[0]), send(input_embeds=embeddings[1])))

    positions = [3, 7, 8]
    overrides = PositionalEmbeds(embeds=[torch.tensor(embeddings[0][position]) for position in positions], positions=positions)
    changed = [5 if position in positions else token for position, token in enumerate(ids[0])]
    run = engine.loop.run_until_complete
    found = [*run(send(input_embeds=embeddings)), *run(both()), run(send(input_ids=changed, positional_embed_overrides=overrides))]
    return [{"token_ids": one["output_ids"], "text": "", "logprobs": [], "meta_info": {}} for one in found]
