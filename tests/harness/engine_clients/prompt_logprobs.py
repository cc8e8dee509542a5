"""A client for prompts whose own log-probabilities are asked for: ``Group(client="prompt_logprobs:send", extra={"starts": [...]})``."""

from typing import Any


def send(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """One batch; ``starts`` says from which token on each prompt is scored. ``meta_info["prompt"]`` holds what came back, without Nones."""
    prompts = group["prompts"]
    asked: dict[str, Any] = {"input_ids": prompts, "logprob_start_len": group["extra"]["starts"], "top_logprobs_num": 2}
    sampling = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True, **group["sampling"]}
    answers = engine.generate(sampling_params=[sampling] * len(prompts), return_logprob=[True] * len(prompts), **asked)
    return [
        {
            "token_ids": answer["output_ids"],
            "text": answer["text"],
            "logprobs": [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]],
            "meta_info": {
                "prompt": [entry[0] for entry in answer["meta_info"]["input_token_logprobs"] if entry[0] is not None],
                "top": [[pair[0] for pair in pairs] for pairs in answer["meta_info"]["input_top_logprobs"] if pairs],
                "cached_tokens": answer["meta_info"]["cached_tokens"],
            },
        }
        for answer in answers
    ]
