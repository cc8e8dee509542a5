"""Renames tensors while they are loaded into SGLang's Gemma 4 model, and checks and counts them while a server starts.

A checkpoint on disk is checked by its headers before anything is allocated. What other loaders bring (``.bin`` files,
streams, a model that is downloaded first) is checked as it is loaded. Updates of a running server may bring any part
of a model and are not checked.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sglang_gemma4.checkpoint import PreflightError, safetensors_files
from sglang_gemma4.checkpoint.heads import EMBEDDING, HEAD, SAMPLES
from sglang_gemma4.checkpoint.tensor_layout import Config, is_tied, mapped, plain, tensors
from sglang_gemma4.checkpoint.whole_checkpoint import Tensor, left_over, other_shape, reason_against
from sglang_gemma4.models.config_files import named_gemma4

logger = logging.getLogger(__name__)
ARRIVED = "_sglang_gemma4_arrived"
READ_BY_HEADERS = ("auto", "safetensors", "fastsafetensors", "instanttensor", "layered")
"""Values of ``--load-format`` with which SGLang loads a folder's safetensors files."""
_TYPES = {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int8: "I8", torch.uint8: "U8"}
_OF_QUANTISED = ("weight_packed", "weight_scale", "weight_scale_inv", "qweight", "scales")
WAY_ROUND = "to serve it as it is, set SGLANG_GEMMA4_WITHOUT=whole_checkpoints"
_starting = False


@dataclass
class Arrived:
    """The weights that arrived for a model: tensors by name, and sampled rows of the head and the embedding.

    ``unfilled``: parameters of quantised layers for which no tensor has arrived.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, torch.Tensor] = field(default_factory=dict)
    unfilled: set[str] | None = None


def is_starting() -> bool:
    """Whether a server is loading its weights for the first time, so that each checkpoint has to be whole."""
    return _starting


def check_files(path: str, config: Config, towers: bool, revision: str | None = None, cache: str | None = None) -> None:
    """Check a checkpoint on disk, or in the hub's cache, by its headers. Others are checked as their tensors arrive.

    Raises:
        PreflightError: the checkpoint does not hold the model that ``config`` describes, or has a broken file.
    """
    _judge(path, safetensors_files.stored_at(path, revision, cache), config, towers)


def _judge(path: str, stored: dict[str, safetensors_files.Stored] | None, config: Config, towers: bool) -> None:
    if stored is None:
        return
    found = {name: Tensor(one.dtype, one.shape) for name, one in stored.items()}
    if (reason := reason_against(found, config, towers)) is not None:
        raise PreflightError(f"{path}: {reason}; {WAY_ROUND}")


def check_downloaded(_weights: Any, loader: Any, source: Any, **_kwargs: Any) -> None:
    """After ``DefaultModelLoader._get_weights_iterator``: check a hub's model, which is in the cache by then.

    No tensor has been read yet.
    """
    if not _starting or source.model_config is None or not named_gemma4(source.model_config.hf_config):
        return
    given = loader.load_config
    if Path(source.model_or_path).is_dir() or str(getattr(given.load_format, "value", given.load_format)) not in READ_BY_HEADERS:
        return  # checked before the start, or as its tensors arrive
    folder = safetensors_files.cached(source.model_or_path, source.revision, given.download_dir)
    if folder is not None:
        _judge(source.model_or_path, safetensors_files.tensors_of(folder), source.model_config.hf_config.to_dict(), _loads_towers())


def at_start(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``ModelRunner.load_model`` and ``finalize_startup_weight_load``: check that the whole model arrives.

    Raises:
        PreflightError: a part of the model is missing.
    """
    global _starting
    _starting = True
    try:
        result = original(runner, *args, **kwargs)
    finally:
        _starting = False
    arrived = runner.model.__dict__.pop(ARRIVED, None)
    if arrived is not None:
        _check(runner.model, runner.model_config.model_path, arrived)
    return result


def load(original: Callable[..., Any], model: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
    """Around ``load_weights``: rename tensors as SGLang reads them, and count them while a server starts."""
    renamed = ((mapped(name), tensor) for name, tensor in weights)
    if not _starting:
        return original(model, renamed)
    arrived = model.__dict__.setdefault(ARRIVED, Arrived())
    if arrived.unfilled is None:
        arrived.unfilled = {name for name, _ in model.named_parameters() if name.endswith(_OF_QUANTISED)}
    try:
        loaded = original(model, _counted(renamed, arrived))
    except (AssertionError, RuntimeError, ValueError) as error:
        name, last = next(reversed(arrived.tensors.items()), ("", None))
        shape = tensors(_config_of(model)).get(plain(name))
        if last is not None and (reason := other_shape(name, last, shape)) is not None:
            raise PreflightError(f"{reason}; {WAY_ROUND}") from error
        raise
    arrived.unfilled -= loaded or set()
    return loaded


def _counted(weights: Iterable[tuple[str, torch.Tensor]], arrived: Arrived) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in weights:
        arrived.tensors[name] = Tensor(_TYPES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape))
        if plain(name) in (HEAD, EMBEDDING):
            arrived.rows[plain(name)] = tensor[:: max(1, len(tensor) // SAMPLES)].clone()
        yield name, tensor


def _check(model: Any, path: str, arrived: Arrived) -> None:
    config, towers = _config_of(model), _loads_towers()
    if (reason := reason_against(arrived.tensors, config, towers, shapes=False)) is not None:  # heads may be padded for ranks by now
        raise PreflightError(f"{path}: {reason}; {WAY_ROUND}")
    head, embedding = arrived.rows.get(HEAD), arrived.rows.get(EMBEDDING)
    both = head is not None and embedding is not None and head.dtype == embedding.dtype
    if both and is_tied(config) and not torch.equal(head, embedding):
        raise PreflightError(
            f"{path}: lm_head.weight is not the embedding, though config.json says so; set tie_word_embeddings to false at its top level, "
            f"as transformers does by itself; {WAY_ROUND}"
        )
    quant_config = getattr(model, "quant_config", None)
    if arrived.unfilled and getattr(quant_config, "ignore", None) is not None:  # compressed-tensors, or read as such
        raise PreflightError(
            f"{path}: the checkpoint has no {min(arrived.unfilled)} ({len(arrived.unfilled)} such tensors are missing), though its "
            "quantization_config says that the layer is quantised; name the layer in `ignore` if it is not"
        )
    if names := left_over(arrived.tensors, config, towers):
        logger.warning(
            "sglang-gemma4: %s: %d tensors that the model does not have are left out: %s", path, len(names), ", ".join(names[:5])
        )


def _config_of(model: Any) -> Config:
    """The model's config as ``config.json`` has it. An assistant keeps the whole config apart from its text model's."""
    found: Config = (getattr(model, "assistant_config", None) or model.config).to_dict()
    return found


def _loads_towers() -> bool:
    from sglang.srt.runtime_context import get_disagg

    return not (get_disagg().language_model_only or get_disagg().language_only)
