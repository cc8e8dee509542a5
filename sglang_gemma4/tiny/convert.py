"""``sglang-gemma4 quantize``: quantises a bfloat16 checkpoint on disk tensor by tensor, as ``quantise`` does, into several files.

At 4 bits each group gets the better of two scales: compressed-tensors' own, or Q4_0's (ggml), which is the group's
value of largest magnitude, with its sign, divided by -8. Google's QAT releases (``…-qat-q4_0-unquantized``) are meant
to hold bfloat16 values on Q4_0's grid. compressed-tensors' scale would round most of them again, by up to half a
step; Q4_0's only by bfloat16's last bit.
"""

import argparse
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_gemma4 import terminal
from sglang_gemma4.checkpoint.safetensors_files import INDEX as INDEX
from sglang_gemma4.checkpoint.safetensors_files import tensors_of
from sglang_gemma4.checkpoint.whole_checkpoint import Tensor, reason_against
from sglang_gemma4.tiny import quantisation
from sglang_gemma4.tiny.quantisation import FORMATS, Format

if TYPE_CHECKING:
    import torch

GIB = 1 << 30
BFLOAT16_BYTES = 2
PART_BYTES = 4 * GIB
"""Size at which a file of the result is written."""
CALIBRATED = ("fp8-static",)
"""Formats whose activations need scales from a calibration, which this command does not do."""


def convert(source: Path, folder: Path, form: Format, part_bytes: int = PART_BYTES, say: Callable[[str], None] = print) -> float:
    """Write the checkpoint in ``source`` to ``folder`` in a format; ``config.json`` last, so that an interrupted run leaves no checkpoint.

    Returns:
        The relative error of the quantised weights: the square root of (sum of squared differences / sum of squares).

    Raises:
        ValueError: ``source`` is not a whole, unquantised Gemma 4 checkpoint, the format needs a calibration or does
            not divide the model, or the disk has too little space.
        FileExistsError: ``folder`` is not empty.
    """
    settings = _settings(source, form)
    if folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is not empty; name a new or empty directory")
    terminal.say(f"quantising {source}; torch is imported first, some 10 seconds")
    files = _files(source, settings)
    needed, free = _bytes_of(files, form), shutil.disk_usage(_existing(folder)).free
    if needed > free:
        raise ValueError(f"{folder} would take {needed / GIB:.1f} GiB and has {free / GIB:.1f} GiB free; name a directory with more room")
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        if file.is_file() and file.suffix != ".safetensors" and file.name not in ("config.json", INDEX):
            shutil.copyfile(file, folder / file.name)
    written, ignored, error = _Parts(folder, part_bytes, say), ["lm_head"], _Error()
    for name, tensor in _tensors(files, form, ignored, error):
        written.add(name, tensor)
    written.end()
    from sglang_gemma4.tiny import quantise

    settings["quantization_config"] = quantisation.config(form, sorted(quantise.ignored_names(ignored, settings)))
    (folder / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    return error.relative


def _settings(source: Path, form: Format) -> dict[str, Any]:
    """The source's config.json; ValueError if this format cannot be made of it."""
    path = source / "config.json"
    if not path.is_file():
        raise ValueError(f"{source} has no config.json; name a checkpoint's directory (`hf download MODEL --local-dir DIRECTORY`)")
    settings: dict[str, Any] = json.loads(path.read_text())
    if not str((settings.get("architectures") or [""])[0]).startswith("Gemma4"):
        raise ValueError(f"{source} is {settings.get('architectures')}, no Gemma 4 model")
    if settings.get("quantization_config"):
        method = settings["quantization_config"].get("quant_method")
        raise ValueError(f"{source} is quantised already ({method}); name the bfloat16 checkpoint that it was made of")
    if form.name in CALIBRATED:
        others = ", ".join(name for name in FORMATS if name not in CALIBRATED)
        raise ValueError(f"--format {form.name} needs a calibration of the activations, which this command does not run; take {others}")
    quantisation.check_sizes(source.name, settings.get("text_config") or settings, form, "--format")
    return settings


def _files(source: Path, settings: Mapping[str, Any]) -> list[Path]:
    """The safetensors files of the checkpoint; ValueError if it is not whole."""
    stored = tensors_of(source)
    if stored is None:
        raise ValueError(f"{source} lacks safetensors files; download the whole checkpoint")
    if (reason := reason_against({name: Tensor(one.dtype, one.shape) for name, one in stored.items()}, settings)) is not None:
        raise ValueError(f"{source}: {reason}")
    return sorted({one.file for one in stored.values()})


def _bytes_of(files: list[Path], form: Format) -> int:
    """Bytes of the result, from the tensors' names and shapes; what is not quantised (E2B's and E4B's largest table) keeps its size."""
    from safetensors import safe_open

    from sglang_gemma4.tiny import quantise

    total = 0.0
    for file in files:
        total += file.stat().st_size
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                if quantise.is_experts(name) or (quantise.is_linear(name) and quantise.is_chosen(name.removesuffix(".weight"))):
                    total -= math.prod(tensors.get_slice(name).get_shape()) * (BFLOAT16_BYTES - form.bytes_per_weight)
    return int(total)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


@dataclass
class _Error:
    """Sums of squares over all quantised weights, for their relative error."""

    differences: float = 0.0
    squares: float = 0.0

    def add(self, weight: "torch.Tensor", rebuilt: "torch.Tensor") -> None:
        self.differences += float((weight.float() - rebuilt.float()).square().sum())
        self.squares += float(weight.float().square().sum())

    @property
    def relative(self) -> float:
        return float((self.differences / self.squares) ** 0.5) if self.squares else 0.0


@dataclass
class _Parts:
    """Gathers tensors into files of at least ``most`` bytes and writes their index."""

    folder: Path
    most: int
    say: Callable[[str], None]
    tensors: dict[str, "torch.Tensor"] = field(default_factory=dict)
    held: int = 0
    total: int = 0
    where: dict[str, str] = field(default_factory=dict)
    files: int = 0

    def add(self, name: str, tensor: "torch.Tensor") -> None:
        self.tensors[name] = tensor.contiguous()
        self.held += tensor.nbytes
        if self.held >= self.most:
            self._write()

    def _write(self) -> None:
        import safetensors.torch

        self.files += 1
        name = f"model-{self.files:05d}.safetensors"
        safetensors.torch.save_file(self.tensors, self.folder / name, metadata={"format": "pt"})
        self.where.update(dict.fromkeys(self.tensors, name))
        self.total += self.held
        self.say(f"{name}: {self.held / GIB:.2f} GiB, {len(self.tensors)} tensors")
        self.tensors, self.held = {}, 0

    def end(self) -> None:
        if self.tensors:
            self._write()
        index = {"metadata": {"total_size": self.total}, "weight_map": self.where}
        (self.folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _tensors(files: list[Path], form: Format, ignored: list[str], error: _Error) -> Iterator[tuple[str, "torch.Tensor"]]:
    from safetensors import safe_open

    from sglang_gemma4.tiny import quantise

    for file in files:
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                for one, tensor in quantise.one_by_one({name: tensors.get_tensor(name)}):
                    yield from _parts(one, tensor, form, ignored, error)


def _parts(name: str, tensor: "torch.Tensor", form: Format, ignored: list[str], error: _Error) -> Iterator[tuple[str, "torch.Tensor"]]:
    import torch

    from sglang_gemma4.tiny import quantise

    layer = name.removesuffix(".weight")
    if not quantise.is_linear(name):
        yield name, tensor
    elif not quantise.is_chosen(layer) or not quantise.divides(tensor, form):
        ignored.append(layer)
        yield name, tensor
    else:
        weight = tensor.to(torch.bfloat16)  # scales take its dtype
        parts = quantise.compress(weight, form, on_grid=True)
        error.add(tensor, quantise.decompress(parts, form))
        yield from ((f"{layer}.{part}", value) for part, value in parts.items())


def add_command(commands: Any) -> None:
    """Add ``quantize``."""
    formats = [name for name in FORMATS if name not in CALIBRATED]
    parser = commands.add_parser(
        "quantize",
        help="quantise a bfloat16 checkpoint of Gemma 4",
        description="Write the checkpoint in SOURCE to PATH with quantised linear layers of the language model. Routers, towers, "
        "embeddings and the MTP draft stay as they are. In 4 bits each group of weights gets compressed-tensors' scale or Q4_0's, "
        "whichever is closer. So Google's …-qat-q4_0-unquantized keeps the values that it was trained for. No GPU is needed, and some "
        "8 GiB of memory.",
    )
    parser.add_argument("source", metavar="SOURCE", type=Path, help="the directory of a bfloat16 checkpoint")
    parser.add_argument("path", metavar="PATH", type=Path, help="the directory to write")
    parser.add_argument("--format", default="w4a16-g32", metavar="FORMAT", help=f"{', '.join(formats)} (default: %(default)s)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    form = quantisation.format_of(arguments.format, "--format")
    relative = convert(arguments.source, arguments.path, form)
    print(f"{arguments.path}: {form.name}; the weights differ from {arguments.source}'s by {100 * relative:.2f} % (root mean square)")
    return 0
