"""Send requests of which some are refused: ``client="refusals:one_by_one"``; the text of a refused one is what SGLang answers."""

from typing import Any

from tests.harness import nursery


def one_by_one(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """One answer for each prompt, each sent when the one before is answered."""
    answers: list[dict[str, Any]] = []
    for number, prompt in enumerate(group["prompts"]):
        single = {**group, "prompts": [prompt], "images": [group["images"][number]]}
        try:
            answers += nursery.send(engine, single)
        except ValueError as error:  # of status 400
            answers.append({"token_ids": [], "text": str(error), "logprobs": [], "meta_info": {}})
    return answers
