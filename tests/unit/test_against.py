"""``patches --by-target`` and ``--against``: seams by file, and another SGLang's source told apart from the installed one."""

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from sglang_gemma4 import cli
from sglang_gemma4.diagnostics import targets, upgrade
from sglang_gemma4.diagnostics.targets import Place
from sglang_gemma4.patches import load_all
from sglang_gemma4.patching import Entry, Seam
from sglang_gemma4.patching.other_sglang import source_of
from sglang_gemma4.patching.signature import signature_text
from sglang_gemma4.patching.source_tree import SourceTree, digest_of, installed_folder

LAYERS = """
import functools
from .base import Base as Parent
from sglang.srt.moved_in import helper
if flag:
    def chosen(): return 1
else:
    def chosen(): return 2
LIMIT = 3
alias = helper
class Layer(Parent):
    class Inner:
        def deep(self): return 1
    @property
    def size(self):
        return 1
    @size.setter
    def size(self, value): pass
    @functools.cache
    def forward(self, x, scale=1):
        # first
        return x * scale
        # last
    KINDS = {"a": Parent, "b": helper}
TABLE = {each.kind: each for each in [Parent]}
BACKENDS = {}
def register(name):
    def add(function):
        BACKENDS[name] = function
    return add
@register("triton")
def create(): return 1
"""
FILES = {
    "srt/__init__.py": "",
    "srt/layers.py": LAYERS,
    "srt/base.py": "class Base:\n    kind = 'p'\n    def inherited(self): return 1\n",
    "srt/moved_in.py": "def helper():\n    return 1\n",
}
AT = "sglang.srt.layers"


def write(folder: Path, files: dict[str, str]) -> SourceTree:
    package = folder / "sglang"
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return SourceTree(package)


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    return write(tmp_path, FILES)


@pytest.mark.parametrize(
    ("target", "places"),
    [
        (f"{AT}.Layer.forward", ["srt/layers.py Layer.forward"]),
        (f"{AT}.Layer.Inner.deep", ["srt/layers.py Layer.Inner.deep"]),
        (f"{AT}.Layer.inherited", ["srt/base.py Base.inherited"]),
        (f"{AT}.Layer.size", ["srt/layers.py Layer.size"]),
        (f"{AT}.helper", ["srt/moved_in.py helper"]),
        (f"{AT}.alias", ["srt/moved_in.py helper"]),
        (f"{AT}.Parent", ["srt/base.py Base"]),
        (f"{AT}.LIMIT", ["srt/layers.py LIMIT"]),
        (f"{AT}.chosen", ["srt/layers.py chosen", "srt/layers.py chosen"]),
        (f"{AT}.absent", []),
        ("sglang.srt.absent.helper", []),
        ("torch.nn.Linear", []),
    ],
)
def test_a_name_is_followed_to_its_definition(target: str, places: list[str], tree: SourceTree) -> None:
    assert [f"{each.path} {each.name}" for each in tree.find(target)] == places


@pytest.mark.parametrize(
    ("registry", "key", "name"),
    [("Layer.KINDS", "a", "Base"), ("Layer.KINDS", "b", "helper"), ("TABLE", "p", "Base"), ("BACKENDS", "triton", "create")],
)
def test_a_registrys_value_is_found(registry: str, key: str, name: str, tree: SourceTree) -> None:
    assert [each.name for each in tree.registered(f"{AT}.{registry}", key)[1]] == [name]
    assert tree.registered(f"{AT}.{registry}", "none of these") == (True, [])
    assert tree.registered(f"{AT}.ABSENT", key) == (False, [])


def test_the_source_is_inspects_own(tree: SourceTree) -> None:
    forward, size = tree.find(f"{AT}.Layer.forward")[0].source, tree.find(f"{AT}.Layer.size")[0].source
    assert forward.startswith("@functools.cache\n")
    assert forward.endswith("    # last\n"), "inspect.getsource has the comment below the last line of the body too"
    assert size == "@property\ndef size(self):\n    return 1\n"


def verdict(before: SourceTree, after: SourceTree, target: str, pins: str = "source") -> upgrade.Found:
    source = before.find(target)[0].source
    mark = digest_of(signature_text(source) if pins == "signature" else source)
    seam = Seam(target, "around", print, mark, ("part",), pins="signature" if pins == "signature" else "source")
    file, names = before.module_of(target) or ("", ())
    return upgrade._found(Place(file, target, None, names, (seam,), ("part",)), after, before)


def test_verdicts(tree: SourceTree, tmp_path: Path) -> None:
    forward = f"{AT}.Layer.forward"
    assert verdict(tree, tree, forward).verdict == "same"
    body = write(tmp_path / "body", FILES | {"srt/layers.py": LAYERS.replace("x * scale", "x + scale")})
    changed = verdict(tree, body, forward)
    assert changed.verdict == "changed"
    assert "-    return x * scale\n+    return x + scale\n" in changed.diff
    assert verdict(tree, body, forward, "signature").verdict == "same"
    call = write(tmp_path / "call", FILES | {"srt/layers.py": LAYERS.replace("scale=1", "scale=2")})
    assert verdict(tree, call, forward, "signature").verdict == "changed"
    moved = write(
        tmp_path / "moved", {"srt/__init__.py": "", "srt/new.py": LAYERS, "srt/layers.py": "", "srt/base.py": FILES["srt/base.py"]}
    )
    assert (found := verdict(tree, moved, forward)).verdict == "moved"
    assert found.at == ("srt/new.py Layer.forward",)
    assert verdict(tree, moved, f"{AT}.helper").verdict == "gone"
    assert upgrade.summary([changed, found]) == "2 targets: 0 same, 1 changed, 1 moved, 0 gone. 1 of 1 parts to look at."
    assert "now srt/new.py Layer.forward" in upgrade.text([changed, found])
    assert "+    return x + scale" not in upgrade.text([changed]), "diffs are for --diff"
    assert "+    return x + scale" in upgrade.text([changed], diffs=True)


def test_of_one_function_only_parts_whose_seam_does_not_fit_are_named(tree: SourceTree, tmp_path: Path) -> None:
    target = f"{AT}.Layer.forward"
    source = tree.find(target)[0].source
    seams = (
        Seam(target, "around", print, digest_of(source), ("reads",)),
        Seam(target, "around", print, digest_of(signature_text(source)), ("forwards",), pins="signature"),
    )
    place = Place("srt/layers.py", target, None, ("Layer", "forward"), seams, ("reads", "forwards"))
    body = write(tmp_path / "body", FILES | {"srt/layers.py": LAYERS.replace("x * scale", "x + scale")})
    found = upgrade._found(place, body, tree)
    assert (found.verdict, found.look) == ("changed", ("reads",))
    assert upgrade.by_part([found]) == {"reads": {"same": 0, "changed": 1, "moved": 0, "gone": 0}}
    assert upgrade.summary([found]).endswith("1 of 2 parts to look at.")


def test_against_the_installed_sglang_all_is_the_same() -> None:
    folder = installed_folder()
    assert folder is not None
    different = [
        (each.place.target, each.place.key, each.verdict) for each in upgrade.compare(str(folder.parent)) if each.verdict != "same"
    ]
    assert different == []


def test_every_form_of_a_source_is_read(tree: SourceTree, tmp_path: Path) -> None:
    wheel, source = tmp_path / "sglang-0.whl", tmp_path / "sglang-0.tar.gz"
    with zipfile.ZipFile(wheel, "w") as file:
        for name in tree.files():
            file.write(tree.folder / name, f"sglang/{name}")
    with tarfile.open(source, "w:gz") as packed:
        packed.add(tree.folder, "sglang-0/python/sglang")
    for wanted in (tmp_path, tree.folder, wheel, source):
        with source_of(str(wanted)) as found:
            assert found.find(f"{AT}.helper"), wanted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "nowhere"], "nowhere is neither a folder, a wheel or source archive, nor a version such as 0.5.22"),
        (["--against", "{tmp}"], "{tmp} holds no SGLang: name the folder that has sglang/srt in it"),
        (["--against", "{tmp}/text.whl"], "{tmp}/text.whl is no wheel (.whl), .zip or .tar.gz"),
        (["--by-target", "--diff"], "--diff goes with --against SGLANG; add it or leave --diff out"),
        (["--json", "--markdown"], "--json goes with the list, NAME, --by-target or --against; leave it out here"),
        (["--by-target", "tripple"], "there is no patch 'tripple'; `sglang-gemma4 patches` lists them"),
    ],
)
def test_what_cannot_be_read_is_said(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.whl").write_text("no archive")
    assert cli.main(["patches", *(word.format(tmp=tmp_path) for word in words)]) == 2
    assert capsys.readouterr().err == f"sglang-gemma4: {message.format(tmp=tmp_path)}\n"


def test_by_target_has_every_seam_and_imports_no_sglang() -> None:
    program = "import sys; from sglang_gemma4 import cli; cli.main(['patches', '--by-target', '--json']); sys.exit('sglang' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    seams = {id(hook): hook for part in load_all() for hook in part.hooks}.values()
    assert sum(len(row["seams"]) for row in rows) == len(seams)
    assert {(row["target"], row["key"]) for row in rows} == {(each.target, each.key if isinstance(each, Entry) else None) for each in seams}
    assert [row["file"] for row in rows] == sorted(row["file"] for row in rows)
    folder = installed_folder()
    assert folder is not None
    assert all((folder / row["file"]).is_file() for row in rows)
    text = targets.text()
    assert text.splitlines()[-1] == f"{len(seams)} seams on {len(rows)} targets in {len({row['file'] for row in rows})} files"
