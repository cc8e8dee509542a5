"""A client for ``Group.client``: prompts with sounds, and with images beside them.

``extra["sounds"]`` holds for each prompt a list of paths.
"""

from typing import Any

from tests.harness import nursery


def ask(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """One batch of requests."""
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
        {
            "token_ids": answer["output_ids"],
            "text": answer["text"],
            "logprobs": [entry[0] for entry in answer["meta_info"].get("output_token_logprobs") or []],
            "meta_info": {key: value for key, value in answer["meta_info"].items() if "logprobs" not in key},
        }
        for answer in answers
    ]
