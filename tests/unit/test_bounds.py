"""The checker of index tables: every kind of violation in poisoned tables, and none in sound ones."""

from typing import Any

import pytest
import torch

from sglang_gemma4.diagnostics import bounds
from sglang_gemma4.diagnostics.bounds import Table, Violation

ROWS, WIDTH, BOUND = 3, 5, 100
REQUESTS = torch.tensor([2, 0, 1])
LENGTHS = torch.tensor([4, 5, 1])
DTYPES = [torch.int32, torch.int64]


def sound(dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Rows of a request table, [requests, positions]; what is past a row's length is poison that must not be read."""
    rows = torch.full((ROWS, WIDTH), 10**6, dtype=dtype)
    for row, length in zip(REQUESTS.tolist(), LENGTHS.tolist(), strict=True):
        rows[row, :length] = torch.arange(length) + 10 * row + 1
    return rows


def two_dimensional(**changes: Any) -> Table:
    fields: dict[str, Any] = {"indices": sound(), "requests": REQUESTS, "lengths": LENGTHS, "by_request": True, "bound": BOUND}
    return Table("table", "full", "slot", lowest=1, **(fields | changes))


def ragged(**changes: Any) -> Table:
    """The same rows one after the other, and poison behind them."""
    parts = [sound()[row, :length] for row, length in zip(REQUESTS.tolist(), LENGTHS.tolist(), strict=True)]
    indices = torch.cat([*parts, torch.full((7,), -(10**6))])
    fields: dict[str, Any] = {"indices": indices, "requests": REQUESTS, "indptr": torch.tensor([0, 4, 9, 10], dtype=torch.int32)}
    return Table("table", "sliding", "slot", lowest=1, bound=BOUND, **(fields | changes))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sound_tables(dtype: torch.dtype) -> None:
    tables = [two_dimensional(indices=sound(dtype)), ragged(indices=ragged().indices.to(dtype))]
    assert bounds.check(tables) is None
    assert bounds.check([]) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("index", "kind"), [(BOUND, "outside"), (-1, "outside"), (2**31 - 1, "outside"), (0, "padding")])
def test_one_bad_entry_is_found_and_named(dtype: torch.dtype, index: int, kind: str) -> None:
    rows = sound(dtype)
    rows[0, 3] = index  # the second request of the batch
    expected: dict[str, Any] = {"kind": kind, "row": 1, "request": 0, "entry": 3, "index": index, "lowest": 1, "bound": BOUND}
    found = bounds.check([ragged(), two_dimensional(indices=rows)])
    assert found == Violation(table="table", group="full", unit="slot", **expected)
    flat = ragged().indices.to(dtype)
    flat[4 + 3] = index
    found = bounds.check([two_dimensional(), ragged(indices=flat)])
    assert found == Violation(table="table", group="sliding", unit="slot", **expected)


def test_the_last_legal_index_is_legal_and_the_first_bad_entry_is_reported() -> None:
    rows = sound()
    rows[0, 0] = BOUND - 1
    assert bounds.check([two_dimensional(indices=rows)]) is None
    rows[0, 1], rows[0, 4] = BOUND, -5
    found = bounds.check([two_dimensional(indices=rows)])
    assert found is not None
    assert (found.entry, found.index) == (1, BOUND)


def test_what_lies_before_the_window_is_not_read() -> None:
    rows = sound()
    rows[0, :2] = 0
    assert bounds.check([two_dimensional(indices=rows, first=torch.tensor([0, 2, 0]))]) is None
    found = bounds.check([two_dimensional(indices=rows, first=torch.tensor([0, 1, 0]))])
    assert found is not None
    assert (found.kind, found.row, found.entry) == ("padding", 1, 1)


def test_a_row_of_nothing_but_padding_is_a_made_up_batch() -> None:
    rows = sound()
    rows[0] = 0
    assert bounds.check([two_dimensional(indices=rows)]) is None
    assert bounds.check([ragged(indices=torch.zeros(10, dtype=torch.int64))]) is None


def test_indices_go_through_the_mapping() -> None:
    mapping = torch.zeros(BOUND + 1, dtype=torch.int64)
    mapping[sound()[0]] = torch.arange(1, 6)
    mapping[sound()[1, 0]], mapping[sound()[2, :4]] = 6, torch.arange(7, 11)
    table = two_dimensional(mapping=mapping, bound=20)
    assert bounds.check([table]) is None
    mapping[3] = 0  # the third key of request 0: freed
    found = bounds.check([table])
    assert found is not None
    assert (found.kind, found.row, found.entry, found.index) == ("padding", 1, 2, 0)
    mapping[3] = 20
    found = bounds.check([table])
    assert found is not None
    assert (found.kind, found.index, found.bound) == ("outside", 20, 20)


@pytest.mark.parametrize(
    ("table", "kind", "row", "index"),
    [
        (two_dimensional(lengths=torch.tensor([4, WIDTH + 1, 1])), "too long", 1, WIDTH + 1),
        (two_dimensional(lengths=torch.tensor([4, -1, 1])), "too long", 1, -1),
        (two_dimensional(requests=torch.tensor([2, ROWS, 1])), "request", 1, ROWS),
        (two_dimensional(requests=torch.tensor([-1, 0, 1])), "request", 0, -1),
        (ragged(indptr=torch.tensor([0, 4, 3, 10])), "disorder", 1, 3),
        (ragged(indptr=torch.tensor([0, 4, 9, 18])), "disorder", 2, 18),
        (ragged(indptr=torch.tensor([-1, 4, 9, 10])), "disorder", 0, 4),
    ],
)
def test_rows_that_cannot_be_followed(table: Table, kind: str, row: int, index: int) -> None:
    found = bounds.check([table])
    assert found is not None
    assert (found.kind, found.row, found.index) == (kind, row, index)


def test_empty_batches_and_rows() -> None:
    assert bounds.check([two_dimensional(lengths=torch.zeros(3, dtype=torch.int64))]) is None
    assert bounds.check([ragged(indptr=torch.zeros(4, dtype=torch.int32))]) is None
    none = torch.zeros(0, dtype=torch.int64)
    assert bounds.check([two_dimensional(requests=none, lengths=none)]) is None


def test_a_table_must_say_how_much_of_it_is_read() -> None:
    with pytest.raises(ValueError, match="table table has neither indptr nor lengths"):
        bounds.check([two_dimensional(lengths=None)])


@pytest.mark.parametrize(
    ("slots", "kind", "entry", "index"),
    [
        ([5, 6, 7], None, 0, 0),
        ([], None, 0, 0),
        ([4, BOUND - 1], None, 0, 0),
        ([5, BOUND, 7], "outside", 1, BOUND),
        ([5, -1], "outside", 1, -1),
        ([5, 3], "padding", 1, 3),
        ([9, 8, 9], "duplicate", 2, 9),
    ],
)
def test_allocations(slots: list[int], kind: str | None, entry: int, index: int) -> None:
    found = bounds.check_allocation(torch.tensor(slots), "sliding", page_size=4, bound=BOUND)
    if kind is None:
        assert found is None
    else:
        assert found == Violation(kind, "allocated slots", "sliding", "slot", -1, -1, entry, index, 4, BOUND)  # type: ignore[arg-type]
