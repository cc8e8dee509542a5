"""What an index and pip get: metadata, links, the declared SGLang; and wheels that hold the package and nothing else."""

import re
import runpy
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import setuptools

from sglang_gemma4 import SUPPORTED_SGLANG, __version__

ROOT = Path(__file__).parents[2]
OTHER = "0.5.22"
"""A version of SGLang that somebody serves with."""


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    """What setup.py gives setuptools."""
    given: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(setuptools, "setup", lambda **named: given.update(named))
        given["script"] = runpy.run_path(str(ROOT / "setup.py"))
    return given


def test_the_index_gets_author_addresses_and_version(metadata: dict[str, Any]) -> None:
    assert metadata["version"] == __version__
    assert metadata["author"]
    assert metadata["license"] == "Apache-2.0"
    repository = metadata["script"]["REPOSITORY"]
    assert set(metadata["project_urls"]) == {"Source", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(repository) for url in (metadata["url"], *metadata["project_urls"].values()))


def test_every_link_of_the_long_description_is_absolute(metadata: dict[str, Any]) -> None:
    text = metadata["long_description"]
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:href|src|srcset)="([^"]+)"', text)
    assert targets
    assert [target for target in targets if not re.match(r"https://|#", target)] == []
    files = [target for target in targets if target.startswith(metadata["script"]["REPOSITORY"])]
    assert files
    for target in files:
        path = re.sub(r"^.*/(blob|raw)/v[\d.]+/", "", target).partition("#")[0]
        assert (ROOT / path).exists(), target


def test_images_are_raw_files_and_links_are_pages(metadata: dict[str, Any]) -> None:
    script = metadata["script"]
    absolute, at = script["RELATIVE"], f"{script['REPOSITORY']}/%s/v{__version__}"
    for text in ("![chart](docs/img/x.svg)", '<img width="9" src="docs/img/x.svg">', "[page](docs/x.md#a)", '<a href="docs/x.md">'):
        assert absolute.search(text), text
    for text in ("[site](https://example.org)", "[here](#what-runs-where)", '<a href="mailto:x@example.org">'):
        assert not absolute.search(text), text
    assert at % "blob" in metadata["long_description"]


def test_sglang_is_declared_by_an_extra_and_never_by_the_package_alone(metadata: dict[str, Any]) -> None:
    """pip would replace the SGLang that serves, without a question."""
    pin = f"sglang=={SUPPORTED_SGLANG}"
    assert [name for name in metadata["install_requires"] if name.startswith("sglang")] == []
    assert metadata["extras_require"]["sglang"] == [pin]
    assert pin in metadata["extras_require"]["test"]


def run(*command: str | Path, at: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], cwd=at, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An sdist and a wheel of the tracked files, and a wheel of the unpacked sdist."""
    folder = tmp_path_factory.mktemp("built")
    tracked = run("git", "ls-files", "-z", at=ROOT).stdout.split("\0")
    checkout = folder / "checkout"
    for name in filter(None, tracked):
        if name.startswith("runs/"):
            continue
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        elif (ROOT / name).exists():
            target.write_bytes((ROOT / name).read_bytes())
    (checkout / "runs").mkdir()
    made = run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", folder, at=checkout)
    assert made.returncode == 0, made.stderr[-2000:]
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    found = {"sdist": sdist}
    for name, source in (("checkout", checkout), ("sdist's", unpacked)):
        out = folder / name.rstrip("'s")
        made = run(sys.executable, "-m", "uv", "build", "-q", "--wheel", "--no-build-isolation", "--out-dir", out, source)
        assert made.returncode == 0, made.stderr[-2000:]
        (found[name],) = out.glob("*.whl")
    return found


def test_wheels_hold_the_package_once_and_nothing_else(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as packed:
        source = {name.partition("/")[2] for name in packed.getnames() if "/" in name}
    files = {"LICENSE", "README.md", "CHANGELOG.md", "MANIFEST.in", "PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py"}
    assert {name.partition("/")[0] for name in source} - files == {"patches", "sglang_gemma4", "sglang_gemma4.egg-info"}
    wheels = {}
    for kind in ("checkout", "sdist's"):
        with zipfile.ZipFile(built[kind]) as packed_wheel:
            names = packed_wheel.namelist()
        assert len(set(names)) == len(names)
        assert {name.partition("/")[0] for name in names} == {"sglang_gemma4", f"sglang_gemma4-{__version__}.dist-info"}
        wheels[kind] = {name for name in names if ".dist-info/" not in name}
    assert wheels["checkout"] == wheels["sdist's"]
    tracked = run("git", "ls-files", "patches", at=ROOT).stdout.split()
    wanted = {f"sglang_gemma4/{name}" for name in tracked if (ROOT / name).exists()}
    assert {name for name in wheels["checkout"] if name.startswith("sglang_gemma4/patches/")} == wanted


def stub(site: Path, name: str, version: str) -> None:
    """An installed distribution of a name and a version, with nothing in it."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("")
    (info / "INSTALLER").write_text("pip\n")


def stub_wheel(index: Path, name: str, version: str) -> None:
    """A wheel of a name and a version with nothing in it."""
    index.mkdir()
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(index / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_pip_leaves_another_sglang_alone_and_the_command_says_so(built: dict[str, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "serving", with_pip=True)
    python = tmp_path / "serving" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    stub(site, "sglang", OTHER)
    stub(site, "jsonschema", "4.0")
    index = tmp_path / "index"
    stub_wheel(index, "sglang", SUPPORTED_SGLANG)
    install = (python, "-m", "pip", "install", "--no-index", "--find-links", index)
    made = run(*install, built["checkout"])
    assert made.returncode == 0, made.stdout + made.stderr
    assert f"sglang {OTHER}" in re.sub(" +", " ", run(python, "-m", "pip", "list").stdout)
    said = run(python.with_name("sglang-gemma4"), "--version")
    assert said.stdout.strip() == (
        f"sglang-gemma4 {__version__}: nothing is applied: this package supports SGLang {SUPPORTED_SGLANG}, {OTHER} is installed"
    )
    asked = run(*install, "--dry-run", f"{built['checkout']}[sglang]")
    assert f"Would install sglang-{SUPPORTED_SGLANG}" in asked.stdout, "the extra asks for the one version"
