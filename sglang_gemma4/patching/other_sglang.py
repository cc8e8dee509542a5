"""The source of another SGLang: a folder, a wheel or source archive, or a downloaded version. Nothing of it is imported or built."""

import contextlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from sglang_gemma4 import terminal
from sglang_gemma4.patching.source_tree import SourceTree

VERSION = re.compile(r"\d+(\.\w+)+")


@contextlib.contextmanager
def source_of(wanted: str) -> Iterator[SourceTree]:
    """The source of an SGLang, as long as the context is open.

    Args:
        wanted: a folder that holds ``sglang/`` (a checkout's ``python/sglang/`` too), a ``.whl``, ``.zip`` or ``.tar.gz``, or a version.

    Raises:
        ValueError: there is no such file and it is no version, it holds no SGLang, or the download failed; the message says what to do.
    """
    path = Path(wanted)
    with tempfile.TemporaryDirectory(prefix="sglang-gemma4-against-") as scratch:
        folder = Path(scratch)
        if path.is_dir():
            folder = path
        elif path.is_file():
            _unpack(path, folder)
        elif VERSION.fullmatch(wanted):
            _download(wanted, folder)
        else:
            raise ValueError(f"{wanted} is neither a folder, a wheel or source archive, nor a version such as 0.5.22")
        yield SourceTree(_package_in(folder, wanted))


def _package_in(folder: Path, wanted: str) -> Path:
    """The folder of the package ``sglang`` in a folder: itself, or at most three levels below."""
    below = [found for depth in ("", "*/", "*/*/") for found in sorted(folder.glob(f"{depth}sglang"))]
    for each in (folder, *below):
        if (each / "srt").is_dir():
            return each
    raise ValueError(f"{wanted} holds no SGLang: name the folder that has sglang/srt in it")


def _unpack(archive: Path, folder: Path) -> None:
    """The Python files of a wheel or a source archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder, [name for name in file.namelist() if name.endswith(".py")])
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as packed:
            packed.extractall(folder, [each for each in packed if each.name.endswith(".py")], filter="data")
    else:
        raise ValueError(f"{archive} is no wheel (.whl), .zip or .tar.gz")


def _download(version: str, folder: Path) -> None:
    """One version's Python files by pip, or by uv where pip is absent, from the index that these are set up for."""
    target = folder / "download"
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--only-binary=:all:", "--no-deps"]
        command += ["--dest", str(target), f"sglang=={version}"]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--quiet", "--no-build", "--no-deps", "--target", str(target), f"sglang=={version}"]
    else:
        raise ValueError(f"neither pip nor uv is here to download SGLang {version}: give the path of its wheel or source instead")
    terminal.say(f"downloading SGLang {version}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise ValueError(f"SGLang {version} cannot be downloaded ({last}): give the path of its wheel or source instead")
    for wheel in target.glob("*.whl"):
        _unpack(wheel, folder)
