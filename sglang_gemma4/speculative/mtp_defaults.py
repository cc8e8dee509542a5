"""Defaults for MTP arguments that the operator left out. Reads config.json files only; neither torch nor sglang is imported."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_gemma4.models.config_files import PreflightError, is_assistant, read_config

AUTO = "auto"
STEPS, TOPK = 3, 1
"""Draft steps and candidates per step, as in every run of this repository. Other values were not compared on a GPU."""


def sibling(model: str) -> str:
    """Path or hub name of a target's assistant: the target's with ``-assistant`` added.

    Raises:
        PreflightError: the target is a local directory and the assistant is not next to it.
    """
    name = f"{model.rstrip('/')}-assistant"
    if Path(model).is_dir() and not Path(name).is_dir():
        raise PreflightError(
            f"--speculative-draft-model-path auto: there is no {name} beside the model; put the assistant there, or name its directory"
        )
    return name


def first_steps(arguments: Mapping[str, Any]) -> int:
    """Draft steps to start with: :data:`STEPS`, or the middle one of the adaptive lengths if it is not among them, as in SGLang."""
    path = arguments.get("speculative_adaptive_config")
    if not arguments.get("speculative_adaptive") or not path or not Path(path).is_file():  # one that is not there is refused later
        return STEPS
    entries = json.loads(Path(path).read_text())
    lengths = sorted({steps for size, entry in entries.items() if size.isdigit() for steps in entry["candidate_steps"]})
    return STEPS if STEPS in lengths else lengths[len(lengths) // 2]


def missing(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of SGLang's ``ServerArgs`` to fill in, by name; empty if the draft is not a Gemma 4 assistant.

    Args:
        arguments: ``model_path``, ``download_dir``, ``quantization`` and the ``speculative_*`` fields as typed.

    Raises:
        PreflightError: see :func:`sibling`.
    """
    draft = arguments.get("speculative_draft_model_path")
    if not draft:
        return {}
    found: dict[str, Any] = {}
    if draft == AUTO:
        draft = sibling(str(arguments["model_path"]))
        found["speculative_draft_model_path"] = draft
    config = read_config(str(draft), "assistant", arguments.get("speculative_draft_model_revision"), arguments.get("download_dir"))
    if config is None or not is_assistant(config):
        return found
    typed = arguments.get("quantization") and not arguments.get("speculative_draft_model_quantization")
    if typed and not config.get("quantization_config"):
        # Else SGLang takes the target's for the draft too (srt/arg_groups/serving_hook.py:685): an assistant in bfloat16 would be quantised
        # as it is loaded, or be asked for a quantization_config that it does not have. One that has its own keeps it.
        found["speculative_draft_model_quantization"] = "unquant"
    if arguments.get("speculative_algorithm") is None:
        found["speculative_algorithm"] = "NEXTN"
    steps, topk = arguments.get("speculative_num_steps"), arguments.get("speculative_eagle_topk")
    tokens = arguments.get("speculative_num_draft_tokens")
    if steps is None:
        steps = found["speculative_num_steps"] = first_steps(arguments) if tokens is None else max(1, tokens - 1)
    if topk is None:
        topk = found["speculative_eagle_topk"] = TOPK
    if tokens is None:
        found["speculative_num_draft_tokens"] = steps * topk + 1
    return found
