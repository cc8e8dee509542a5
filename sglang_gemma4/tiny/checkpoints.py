"""Writes checkpoints to a directory: the trained tiny families as they ship, and config-only ones of the real sizes.

Needs neither torch nor transformers.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from sglang_gemma4 import terminal
from sglang_gemma4.tiny import families, quantisation, real_processing, real_sizes

SHIPPED = Path(__file__).with_name("checkpoints")
NAMES: tuple[str, ...] = families.TINY
RANDOM_NAMES: tuple[str, ...] = tuple(real_sizes.SIZES)
MARKER = ".sglang-gemma4-checkpoint"  # lists the files written, so that writing again replaces only those


def write(name: str, path: str, random: bool = False, quantised: str | None = None) -> list[str]:
    """Write `name` to `path` and its MTP assistant to `path`-assistant; returns both directories.

    Tiny names carry trained weights. The real sizes ("26b-a4b", ...) need `random=True`: their config.json, a small
    tokenizer and a processor, to be served with random weights (--load-format dummy). `quantised` names a format of
    ``quantisation``, for the target; the assistant stays in bfloat16.
    ValueError: an unknown name, weights that do not exist, or a format that does not fit them.
    FileExistsError: a directory holding anything else."""
    form = quantisation.format_of(quantised) if quantised else None
    if name in NAMES and not random:
        target = _quantised_files(name, _shipped_files(name), quantisation.tiny(form)) if form else _shipped_files(name)
        plans: list[tuple[str, dict[str, Any]]] = [(path, target), (f"{path}-assistant", _shipped_files(f"{name}-assistant"))]
    elif name in RANDOM_NAMES and random:
        plans = [
            (path, _quantised_config(name, real_processing.files(name, SHIPPED / "tiny-e2b"), form)),
            (f"{path}-assistant", {"config.json": real_processing.as_json(real_sizes.assistant(name))}),
        ]
    elif name in NAMES:
        raise ValueError(f"{name!r} ships with trained weights; drop random (--random), which is for {', '.join(RANDOM_NAMES)}")
    elif name in RANDOM_NAMES:
        trained = f", or take tiny-{name}" if f"tiny-{name}" in NAMES else ""
        raise ValueError(f"no weights of {name!r} are shipped; add random=True (--random) for a config-only checkpoint{trained}")
    else:
        raise ValueError(
            f"unknown checkpoint {name!r}; trained: {', '.join(NAMES)}; with random=True (--random): {', '.join(RANDOM_NAMES)}"
        )
    for where, _ in plans:
        _refuse_foreign(Path(where))
    for where, files in plans:
        _write_files(Path(where), name, files)
    return [where for where, _ in plans]


def _quantised_config(name: str, files: dict[str, Any], form: quantisation.Format | None) -> dict[str, Any]:
    """The files of a config-only checkpoint whose config.json asks for the format."""
    if form is None:
        return files
    config = real_sizes.target(name)
    quantisation.check_sizes(name, config["text_config"], form)
    return {**files, "config.json": real_processing.as_json({**config, "quantization_config": quantisation.config(form)})}


def _quantised_files(name: str, files: dict[str, Any], form: quantisation.Format) -> dict[str, Any]:
    """A shipped checkpoint's files with weights quantised by compressed-tensors; this part needs torch and transformers."""
    quantisation.check_sizes(name, json.loads(files["config.json"].read_text())["text_config"], form)
    terminal.say(f"quantising {name}; torch and transformers are imported first, some 20 seconds")
    try:
        from sglang_gemma4.tiny import calibration, quantise
    except ModuleNotFoundError as missing:
        raise ValueError(
            f"--quantization {form.name} of {name}: {missing.name} is not installed; it comes with SGLang (pip install sglang)"
        ) from missing

    scales = calibration.input_scales(SHIPPED / name) if form.name == "fp8-static" else None
    return {**files, **quantise.quantised(SHIPPED / name, form, scales)}


def _shipped_files(name: str) -> dict[str, Any]:
    directory = SHIPPED / name
    files = {f.name: f for f in sorted(directory.iterdir()) if f.is_file()} if directory.is_dir() else {}
    if "model.safetensors" not in files:
        raise FileNotFoundError(f"{directory} holds no model.safetensors; reinstall the package with its data files")
    return files


def _refuse_foreign(path: Path) -> None:
    if path.is_file():
        raise FileExistsError(f"{path} is a file; name a new directory")
    if path.is_dir() and any(path.iterdir()) and not (path / MARKER).is_file():
        raise FileExistsError(f"{path} is not empty and was not written by sglang-gemma4 checkpoint; name a new or empty directory")


def _write_files(path: Path, name: str, files: dict[str, Any]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    if (path / MARKER).is_file():
        for old in json.loads((path / MARKER).read_text())["files"]:
            (path / Path(old).name).unlink(missing_ok=True)
    (path / MARKER).write_text(json.dumps({"checkpoint": name, "files": sorted(files)}) + "\n")
    for file, content in files.items():
        if isinstance(content, Path):
            shutil.copyfile(content, path / file)
        else:
            (path / file).write_bytes(content)
