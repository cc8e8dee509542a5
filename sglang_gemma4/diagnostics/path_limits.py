"""Finds files and directories that flags name but that do not exist; SGLang looks for them only after loading the weights.

Neither torch nor sglang is imported.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FILES = (
    "tokenizer_path",
    "chat_template",
    "completion_template",
    "quantization_param_path",
    "speculative_adaptive_config",
    "lmcache_config_file",
    "flexkv_config_file",
    "debug_tensor_dump_input_file",
    "decrypted_config_file",
    "decrypted_draft_config_file",
    "rl_quant_profile",
    "ssl_keyfile",
    "ssl_certfile",
)
"""Flags that name a file or directory; some of them also accept the name of a template or a model."""
LOADERS = {"runai_streamer": "runai_model_streamer", "bitsandbytes": "bitsandbytes", "fastsafetensors": "fastsafetensors"}
"""Weight formats that need a package which SGLang does not install."""
OF_OTHERS = ("layered", "flash_rl")
"""Weight formats whose loaders need something that no Gemma 4 class has."""
PATTERNS = {"pt": ("*.pt", "*.bin"), "npcache": ("*.pt", "*.bin"), "sharded_state": ("model-rank-*",)}
"""Weight formats and the files that hold them; all others read safetensors."""
FIELDS = (*FILES, "model_path", "load_format", "lora_paths", "hicache_storage_backend_extra_config")
"""The arguments that :func:`problems` reads."""


def problems(arguments: Mapping[str, Any]) -> Iterator[str]:
    """What is missing, one line each."""
    for name in FILES:
        path = str(arguments.get(name) or "")
        if _is_local(path) and not Path(path).expanduser().exists():
            yield f"--{name.replace('_', '-')} {path}: there is no such file; correct the path, or leave the flag out"
    extra = str(arguments.get("hicache_storage_backend_extra_config") or "")
    if extra.startswith("@") and not Path(extra[1:]).is_file():
        yield f"--hicache-storage-backend-extra-config {extra}: there is no file {extra[1:]}; give one, or the JSON itself"
    yield from _weights(str(arguments.get("model_path")), arguments.get("load_format"))
    yield from _adapters(arguments.get("lora_paths"))


def _is_local(path: str) -> bool:
    return path.startswith(("/", ".", "~"))


def _weights(model: str, load_format: Any) -> Iterator[str]:
    if load_format in OF_OTHERS:
        yield f"--load-format {load_format} loads other models; leave the flag out"
    package = LOADERS.get(str(load_format))
    if package and importlib.util.find_spec(package) is None:
        yield f"--load-format {load_format} needs the package {package}, which is not installed; install it, or leave the flag out"
    wanted = PATTERNS.get(str(load_format), ())
    if wanted and Path(model).is_dir() and not any(found for pattern in wanted for found in Path(model).glob(pattern)):
        yield f"--load-format {load_format}: {model} has no {' or '.join(wanted)}; leave the flag out"


def _adapters(given: Any) -> Iterator[str]:
    """Adapters that name no directory: SGLang would look for them on the hub once the weights are loaded."""
    several = given.items() if isinstance(given, Mapping) else [given] if isinstance(given, str) else given or ()
    for path in map(_path, several):
        if path.startswith(("/", ".", "~")) and not Path(path).expanduser().is_dir():
            yield f"--lora-paths {path}: there is no such directory; give an adapter as PEFT saves it, or a Hugging Face name"
        elif Path(path).is_dir() and not (Path(path) / "adapter_config.json").is_file():
            yield f"--lora-paths {path} has no adapter_config.json; give an adapter as PEFT saves it"


def _path(one: Any) -> str:
    """The path of PATH, NAME=PATH, ``(name, path)``, a JSON object or a LoRARef."""
    if isinstance(one, tuple):
        return str(one[1])
    if isinstance(one, Mapping):
        return str(one.get("lora_path", ""))
    return str(getattr(one, "lora_path", str(one).partition("=")[2] or one))
