"""config.json of Gemma 4 checkpoints: reading it from disk or the hub, and telling targets from assistants.

Neither torch nor sglang is imported.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_gemma4.checkpoint import PreflightError as PreflightError

ARCHITECTURES = ("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4UnifiedForConditionalGeneration")
ASSISTANTS = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
DSPARK = "Gemma4DSparkModel"
"""A DSpark draft, which has layers like a Gemma 4's, keys and values of its own, and neither embeddings nor a head."""


def read_config(path: str, role: str, revision: str | None = None, cache: str | None = None) -> dict[str, Any] | None:
    """The config.json of a local checkpoint or of one on the Hugging Face hub; None if SGLang loads it in another way.

    Raises:
        PreflightError: the file does not exist, or is not a JSON object.
    """
    if "://" in path or Path(path).is_file() or path.endswith(".gguf") or (":" in path and not Path(path).exists()):
        return None  # object stores, single files, GGUF in a hub repository ("owner/name:Q4_K_M")
    if Path(path).is_dir():
        file = Path(path) / "config.json"
        if not file.exists():
            if (Path(path) / "params.json").exists():
                return None
            raise PreflightError(f"{role} {path} has no config.json; give the directory of a checkpoint as transformers saves it")
    elif path.startswith(("/", ".", "~")):
        raise PreflightError(f"{role} {path} does not exist; give a checkpoint's directory or a Hugging Face name")
    else:
        hub = _hub_config(path, role, revision, cache)
        if hub is None:
            return None
        file = hub
    try:
        content = json.loads(file.read_text())
    except ValueError as error:
        raise PreflightError(f"{file} is not valid JSON ({error}); write the checkpoint again") from error
    if not isinstance(content, dict):
        raise PreflightError(f"{file} holds a {type(content).__name__} where a JSON object is expected; write the checkpoint again")
    return content


def _hub_config(name: str, role: str, revision: str | None, cache: str | None) -> Path | None:
    if os.environ.get("SGLANG_USE_MODELSCOPE", "").lower() in ("1", "true"):
        return None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(hf_hub_download(name, "config.json", revision=revision, cache_dir=cache))
    except GatedRepoError:
        return None  # SGLang's own loader says how to get access
    except (HFValidationError, RepositoryNotFoundError, LocalEntryNotFoundError) as error:
        kind = {
            HFValidationError: "not a valid Hugging Face name",
            RepositoryNotFoundError: "not on the Hugging Face hub, or private",
        }.get(type(error), "not in the local cache, and the Hugging Face hub cannot be reached")
        raise PreflightError(
            f"{role} {name!r} is neither a local directory nor to be had: {kind}; "
            f"check the name, or write a small one with `sglang-gemma4 checkpoint tiny-26b-a4b PATH`"
        ) from error
    except OSError:
        return None  # a network error, or a repository without config.json: SGLang's own loader reports it


def is_gemma4(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is a Gemma 4 target's."""
    return any(name in ARCHITECTURES for name in config.get("architectures") or [])


def named_gemma4(config: Any) -> bool:
    """Whether a transformers config is a Gemma 4's, a target's or an assistant's."""
    return any(name.startswith("Gemma4") and name != DSPARK for name in getattr(config, "architectures", None) or ())


def is_assistant(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is an MTP assistant's, by SGLang's criterion (arg_groups/speculative_hook.py:97)."""
    return any(name in ASSISTANTS for name in config.get("architectures") or [])
