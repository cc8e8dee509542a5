"""Clients that ask ``Engine.generate`` in their own way, in the engine's process; a function for each."""

import asyncio
import json
from typing import Any

from tests.harness import nursery


def prompt_logprobs(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """One batch; ``extra["starts"]`` says from which token on each prompt is scored. ``meta_info["prompt"]`` holds the scores, no Nones."""
    prompts = group["prompts"]
    asked: dict[str, Any] = {"input_ids": prompts, "logprob_start_len": group["extra"]["starts"], "top_logprobs_num": 2}
    sampling = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True, **group["sampling"]}
    answers = engine.generate(sampling_params=[sampling] * len(prompts), return_logprob=[True] * len(prompts), **asked)
    return [
        _answer(
            answer["output_ids"],
            answer["text"],
            {
                "prompt": [entry[0] for entry in answer["meta_info"]["input_token_logprobs"] if entry[0] is not None],
                "top": [[pair[0] for pair in pairs] for pairs in answer["meta_info"]["input_top_logprobs"] if pairs],
                "cached_tokens": answer["meta_info"]["cached_tokens"],
            },
            answer["meta_info"],
        )
        for answer in answers
    ]


def audio(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """Send one batch of texts with audio and images; ``extra["sounds"]`` holds a list of audio paths for each prompt."""
    sampling = {**nursery.GREEDY, **group["sampling"]}
    images = group["images"] or [None] * len(group["prompts"])
    answers = engine.generate(
        prompt=group["prompts"],
        image_data=[one or None for one in images] if any(images) else None,
        audio_data=[one or None for one in group["extra"]["sounds"]],
        sampling_params=[sampling] * len(group["prompts"]),
        return_logprob=group["logprobs"],
    )
    return [
        _answer(
            answer["output_ids"],
            answer["text"],
            {key: value for key, value in answer["meta_info"].items() if "logprobs" not in key},
            answer["meta_info"],
        )
        for answer in answers
    ]


def adapters(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """One batch; ``extra`` may hold ``adapters``, one name or None for each prompt, and ``load`` and ``unload``, done first.

    The answers begin with one for each load and unload, whose ``text`` is the error, if any.
    """
    extra, done = group["extra"], []
    for name in extra.get("unload", ()):
        done.append(engine.unload_lora_adapter(name))
    for name, path in extra.get("load", {}).items():
        done.append(engine.load_lora_adapter(name, path))
    said = [_answer([], "" if one.success else one.error_message or "refused", {"spec_verify_ct": None}) for one in done]
    if not group["prompts"]:
        return said
    sampling = {"temperature": 0, "ignore_eos": True, **group["sampling"]}
    options = {"sampling_params": sampling, "return_logprob": group["logprobs"]}
    outputs = engine.generate(input_ids=group["prompts"], lora_path=extra["adapters"], **options)
    return said + [
        _answer(output["output_ids"], "", {"spec_verify_ct": output["meta_info"].get("spec_verify_ct")}, output["meta_info"])
        for output in outputs
    ]


def refusals(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """One prompt after the other, some of which are refused: the ``text`` of a refused one is SGLang's message."""
    answers: list[dict[str, Any]] = []
    for number, prompt in enumerate(group["prompts"]):
        single = {**group, "prompts": [prompt], "images": [group["images"][number]]}
        try:
            answers += nursery.send(engine, single)
        except ValueError as error:  # of status 400
            answers.append(_answer([], str(error), {}))
    return answers


def schemas(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """Requests with a schema each, ``extra["together"]`` at once. ``meta_info["refused"]`` of an answer is the error."""

    async def everything() -> list[dict[str, Any]]:
        together = asyncio.Semaphore(group["extra"]["together"])

        async def one(prompt: Any, sampling: dict[str, Any]) -> dict[str, Any]:
            async with together:
                try:
                    found = await engine.async_generate(prompt=prompt, sampling_params=sampling)
                except ValueError as error:
                    return _answer([], "", {"refused": str(error)})
            about = {"finish": found["meta_info"]["finish_reason"]["type"], "tokens": len(found["output_ids"])}
            return _answer([], found["text"], json.loads(json.dumps(about)))

        return await asyncio.gather(*map(one, group["prompts"], group["sampling"]))

    answers: list[dict[str, Any]] = engine.loop.run_until_complete(everything())
    return answers


def embeddings(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """Two prompts of embeddings at once; one with one of ids; ids of which some positions are overwritten by other tokens' embeddings."""
    import torch
    from sglang.srt.managers.embed_types import PositionalEmbeds
    from sglang.srt.managers.io_struct import GenerateReqInput

    given, ids = group["extra"]["embeddings"], group["extra"]["ids"]
    sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}

    async def send(**prompt: Any) -> Any:
        return await engine.tokenizer_manager.generate_request(GenerateReqInput(**prompt, sampling_params=sampling), None).__anext__()

    async def both() -> list[Any]:
        return list(await asyncio.gather(send(input_ids=ids[0]), send(input_embeds=given[1])))

    positions = [3, 7, 8]
    overrides = PositionalEmbeds(embeds=[torch.tensor(given[0][position]) for position in positions], positions=positions)
    changed = [5 if position in positions else token for position, token in enumerate(ids[0])]
    run = engine.loop.run_until_complete
    found = [*run(send(input_embeds=given)), *run(both()), run(send(input_ids=changed, positional_embed_overrides=overrides))]
    return [_answer(one["output_ids"], "", {}) for one in found]


def _answer(token_ids: list[int], text: str, meta: dict[str, Any], scored: dict[str, Any] | None = None) -> dict[str, Any]:
    """An answer in ``nursery.send``'s form; ``scored`` is SGLang's ``meta_info`` with the log-probabilities of the output tokens."""
    logprobs = [entry[0] for entry in (scored or {}).get("output_token_logprobs") or []]
    return {"token_ids": token_ids, "text": text, "logprobs": logprobs, "meta_info": meta}
