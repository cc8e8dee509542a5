"""Requests with adapters, in the engine's process: ``client="lora_client:send"``."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

GREEDY = {"temperature": 0, "ignore_eos": True}


def send(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """One batch; ``extra`` may hold ``adapters``, one name or None for each prompt, ``load`` and ``unload``, done first.

    The answers begin with one for each load and unload, whose ``text`` is the error, if any.
    """
    extra, answers = group["extra"], []
    for name in extra.get("unload", ()):
        answers.append(engine.unload_lora_adapter(name))
    for name, path in extra.get("load", {}).items():
        answers.append(engine.load_lora_adapter(name, path))
    said = [_answer([], "" if answer.success else answer.error_message or "refused") for answer in answers]
    if not group["prompts"]:
        return said
    sampling = {**GREEDY, **group["sampling"]}
    options = {"sampling_params": sampling, "return_logprob": group["logprobs"]}
    outputs = engine.generate(input_ids=group["prompts"], lora_path=extra["adapters"], **options)
    return said + [_answer(output["output_ids"], "", output["meta_info"]) for output in outputs]


def _answer(token_ids: list[int], text: str, about: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    logprobs = [entry[0] for entry in about.get("output_token_logprobs") or []]
    return {"token_ids": token_ids, "text": text, "logprobs": logprobs, "meta_info": {"spec_verify_ct": about.get("spec_verify_ct")}}
