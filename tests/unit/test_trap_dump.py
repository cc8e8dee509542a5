"""Dumps and their explanations: what `doctor dump` says of each cause, and of files that are no dumps."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_gemma4 import cli
from sglang_gemma4.diagnostics import trap_dump, traps
from sglang_gemma4.patching.switches import DEBUG_DIR, check_all
from tests.unit import test_kv_tables as stand_ins
from tests.unit.test_kv_tables import PAGE, armed

Break = Callable[[Any, Any, torch.Tensor, Any], None]


def poison(name: str, row: int, entry: int, value: int) -> Break:
    def apply(backend: Any, _batch: Any, _table: torch.Tensor, _pool: Any) -> None:
        backend.poison = (name, row, entry, value)

    return apply


def mapped_to(value: int) -> Break:
    def apply(_backend: Any, _batch: Any, table: torch.Tensor, pool: Any) -> None:
        pool.full_to_swa_index_mapping[int(table[3, 15])] = value

    return apply


def in_request_table(_backend: Any, _batch: Any, table: torch.Tensor, _pool: Any) -> None:
    table[3, 5] = 1000


def too_long(_backend: Any, batch: Any, _table: torch.Tensor, _pool: Any) -> None:
    batch.seq_lens = torch.tensor([18, 25])


def no_such_request(_backend: Any, batch: Any, _table: torch.Tensor, _pool: Any) -> None:
    batch.req_pool_indices = torch.tensor([3, 9])


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (poison("page_table", 1, 2, 17), "it should be page 8 (slot 32 of the request table): the backend's own table was built wrong"),
        (poison("swa_page_table", 0, 4, 9), "it should be page 3 (sliding slot 12 of full slot 20): the backend's own table"),
        (poison("page_table", 1, 1, -(2**31)), "never filled, or overwritten with something that is not a slot"),
        (mapped_to(0), "full slot 19 has no sliding slot any more: it was freed too early"),
        (mapped_to(99), "full slot 19 is mapped to it: the full-to-sliding mapping itself was overwritten"),
        (in_request_table, "it is in SGLang's request table"),
        (too_long, "a context length too small for the draft tokens"),
        (no_such_request, "has a request slot that does not exist"),
    ],
)
def test_the_likely_cause(
    fault: Break, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DEBUG_DIR, str(tmp_path / "made" / "here"))
    backend, batch, table, pool = armed()
    fault(backend, batch, table, pool)
    with pytest.raises(traps.KVBoundsError) as caught:
        backend.init_forward_metadata(batch)
    (path,) = (tmp_path / "made" / "here").glob("sglang-gemma4-trap-*.npz")
    assert f"`sglang-gemma4 doctor dump {path}` explains it" in str(caught.value)
    assert cli.main(["doctor", "dump", str(path)]) == 0
    said = capsys.readouterr().out
    (likely,) = (line for line in said.splitlines() if line.startswith("likely"))
    assert says in likely, said
    assert "pools     full slots 4..67, sliding slots 4..35, page size 4" in said
    assert "window    8 keys" in said


def test_sliding_layers_that_follow_the_full_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As fa4's draft: no table of its own, and full pages that the sliding buffer does not have."""
    monkeypatch.setenv(DEBUG_DIR, str(tmp_path))

    class FlashAttentionBackend(stand_ins.Paged):
        def init_forward_metadata(self, batch: Any) -> None:
            super().init_forward_metadata(batch)
            self.forward_metadata.swa_page_table = self.forward_metadata.swa_out_cache_loc = None

    backend, batch, table, pool = armed(draft=True, kind=FlashAttentionBackend)
    table[1, 8:12] = torch.arange(4).int() + 40  # page 10 of the full pool's 16; the sliding pool has 8
    pool.full_to_swa_index_mapping[40:44] = torch.arange(4) + 32
    with pytest.raises(traps.KVBoundsError, match=r"sliding layers \(0, 1\): entry 2 in row 1 .* of page_table is page 10; .* 1\.\.8 "):
        backend.init_forward_metadata(batch)
    (path,) = tmp_path.glob("*.npz")
    assert "it is the full page itself, the sliding one is 8: sliding layers follow the full table" in trap_dump.explain(path)


def test_the_neighbours_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEBUG_DIR, str(tmp_path))
    backend, batch, table, _ = armed()
    in_request_table(backend, batch, table, None)
    with pytest.raises(traps.KVBoundsError):
        backend.init_forward_metadata(batch)
    (path,) = tmp_path.glob("*.npz")
    said = trap_dump.explain(path)
    around = " ".join(str(value) for value in range(1 + PAGE, 5 + PAGE))
    assert f"entries 1..9 of the row: ... {around} >1000< 10 11 12 13 ..." in said
    assert "1 of the row's 18 entries that are read cannot be" in said
    report, arrays = trap_dump.read(path)
    assert report["request_ids"] == ["one", "two"]
    assert arrays["key_lens"].tolist() == [18, 11]
    assert arrays["mapping"].shape == (64 + PAGE + 1,)


def test_a_dump_that_cannot_be_written_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv(DEBUG_DIR, str(tmp_path / "file"))
    backend, batch, table, _ = armed()
    in_request_table(backend, batch, table, None)
    with pytest.raises(traps.KVBoundsError, match=r"req_to_token is slot 1000; .*; its dump could not be written: .*Error"):
        backend.init_forward_metadata(batch)


@pytest.mark.parametrize("content", [None, b"", b"text", b"PK\x03\x04broken"])
def test_what_is_no_dump_is_one_line_and_status_2(content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dump.npz"
    if content is not None:
        path.write_bytes(content)
    assert cli.main(["doctor", "dump", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line


def test_the_directory_is_no_misspelt_switch() -> None:
    assert check_all({DEBUG_DIR: "/somewhere"}) == []


def test_explaining_needs_neither_torch_nor_sglang() -> None:
    program = "import sys; from sglang_gemma4.diagnostics import trap_dump; print([m for m in ('torch', 'sglang') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
