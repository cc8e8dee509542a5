"""Dumps of trapped accesses: one .npz file with the tables and a JSON report. Written by ``traps``, explained by ``doctor dump``.

Reading one needs numpy only, so it works on any machine.
"""

import json
import os
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sglang_gemma4.patching.switches import DEBUG_DIR

REPORT = "report"
NEIGHBOURS = 4
"""Entries shown on each side of the illegal one."""
GARBAGE = 1 << 31
"""No pool has this many slots: a larger index does not come from an allocator."""

BUILT_WRONG = "the backend's own table was built wrong, or overwritten after it was built."
WHOLE_ROW = {
    "request": "the batch has a request slot that does not exist: its req_pool_indices were overwritten, or never filled.",
    "too long": "the request is longer than the row that holds its indices: a context length too small for the draft tokens, or "
    "sequence lengths that were overwritten. A builder that does not clamp writes into the next request's row.",
    "disorder": "row offsets are sums of lengths, so a length was negative or overwritten after they were summed.",
    "duplicate": "a slot was freed twice, so that the free list holds it twice: look at what freed requests just before.",
}
"""Likely causes that follow from the kind of violation."""


def write(report: Mapping[str, Any], arrays: Mapping[str, "np.ndarray[Any, Any]"]) -> Path:
    """Write a dump to ``SGLANG_GEMMA4_DEBUG_DIR`` (default: the directory for temporary files); return its path."""
    folder = Path(os.environ.get(DEBUG_DIR) or tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"sglang-gemma4-trap-{os.getpid()}-{time.time_ns()}.npz"
    with path.open("xb") as file:
        np.savez_compressed(file, allow_pickle=False, **{REPORT: np.array(json.dumps(report))}, **arrays)
    return path


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, "np.ndarray[Any, Any]"]]:
    """Report and arrays of a dump.

    Raises:
        ValueError: the file is not a dump of this package.
        OSError: it cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return json.loads(str(arrays.pop(REPORT))), arrays
    except (KeyError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is not a dump of sglang-gemma4's traps ({error}); they are named sglang-gemma4-trap-*.npz") from error


def sentence(report: Mapping[str, Any]) -> str:
    """The violation in one sentence with layers, request, row, index and bound."""
    found = report["violation"]
    layers = report["layers"].get(found["group"]) or []
    who = f"{found['group']} layers" + (f" ({', '.join(map(str, layers))})" if layers else "")
    last, unit = found["bound"] - 1, found["unit"]
    if found["row"] < 0:
        if found["kind"] == "duplicate":
            return f"{who}: the allocator gave slot {found['index']} to two tokens of one call, one of them token {found['entry']}"
        slot = f"{'padding ' if found['kind'] == 'padding' else ''}slot {found['index']}"
        return f"{who}: token {found['entry']} of the {found['table']} has {slot}; the buffer's are {found['lowest']}..{last}"
    owner = f"row {found['row']} (request {_name(report, found)})"
    where = f"{owner} of {found['table']}"
    return {
        "outside": f"{who}: entry {found['entry']} in {where} is {unit} {found['index']}; the buffer's are {found['lowest']}..{last}",
        "padding": f"{who}: entry {found['entry']} in {where} is padding {unit} {found['index']} among real ones; "
        f"the buffer's are {found['lowest']}..{last}",
        "too long": f"{who}: {where} is read for {found['index']} {unit}s, and the row has {last}",
        "disorder": f"{who}: {where} ends at offset {found['index']}, outside {found['lowest']}..{last}",
        "request": f"{who}: {owner} has row {found['index']} of {found['table']}, which has rows {found['lowest']}..{last}",
    }[found["kind"]]


def _name(report: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    names = report.get("request_ids") or []
    name = f"{names[found['row']]}, " if found["row"] < len(names) else ""
    return f"{name}pool row {found['request']}"


def explain(path: str | Path) -> str:
    """Explain a dump: the violation, where it happened, the neighbouring entries, and the likely cause.

    Raises:
        ValueError, OSError: as :func:`read`.
    """
    report, arrays = read(path)
    found, geometry = report["violation"], report["geometry"]
    lowest = geometry["page_size"]
    lines = [
        f"caught    {sentence(report)}",
        f"when      {report['when']}, process {report['process']}, {report['forward']} on {report['backend']}",
        f"software  sglang-gemma4 {report['package']}, SGLang {report['sglang']}",
        f"pools     full slots {lowest}..{geometry['full_slots'] - 1}, sliding slots {lowest}..{geometry['sliding_slots'] - 1}, "
        f"page size {lowest}; slots below are padding",
    ]
    if geometry["window"] is not None:
        lines.append(f"window    {geometry['window']} keys, the query's own included")
    table = next((i for i, each in enumerate(report["tables"]) if (each["name"], each["group"]) == (found["table"], found["group"])), None)
    if table is not None and found["row"] >= 0:
        lines += _row(report, arrays, table)
    lines.append(f"likely    {_cause(report, arrays, table)}")
    return "\n".join(lines)


def _entries(report: Mapping[str, Any], arrays: Mapping[str, "np.ndarray[Any, Any]"], table: int, row: int) -> tuple[int, list[int]]:
    """Index of a row's first entry that is read, and the entries from there on."""
    shape = report["tables"][table]
    first = shape["first"][row]
    return first, arrays[f"table{table}"][row, first : shape["ends"][row] - shape["starts"][row]].tolist()


def _row(report: Mapping[str, Any], arrays: Mapping[str, "np.ndarray[Any, Any]"], table: int) -> list[str]:
    found = report["violation"]
    first, entries = _entries(report, arrays, table, found["row"])
    lines = [f"request   {found['row'] + 1} of {len(report['key_lens'])} in the batch, {report['key_lens'][found['row']]} keys"]
    if found["kind"] not in ("outside", "padding"):
        return lines
    at = found["entry"] - first
    begin, end = max(0, at - NEIGHBOURS), at + NEIGHBOURS + 1
    shown = [f">{value}<" if begin + i == at else str(value) for i, value in enumerate(entries[begin:end])]
    ends = ("... " if begin else "") + " ".join(shown) + (" ..." if end < len(entries) else "")
    lines.append(f"around    entries {first + begin}..{first + min(end, len(entries)) - 1} of the row: {ends}")
    wrong = sum(not found["lowest"] <= value < found["bound"] for value in entries)
    lines.append(f"in all    {wrong} of the row's {len(entries)} entries that are read cannot be")
    return lines


def _cause(report: Mapping[str, Any], arrays: Mapping[str, "np.ndarray[Any, Any]"], table: int | None) -> str:
    """The first explanation that fits, and where to look next."""
    found, mapping = report["violation"], arrays.get("mapping")
    if found["kind"] in WHOLE_ROW:
        return WHOLE_ROW[found["kind"]]
    if table is None or found["row"] < 0:
        return "the free list holds a slot outside the buffer: something freed an index that it did not own, or the sizes changed."
    if found["index"] < 0 or found["index"] >= GARBAGE:
        return "no allocator returns such a number: the entry was never filled, or overwritten with something that is not a slot."
    if found["table"] == "req_to_token":
        return "it is in SGLang's request table, so every backend would use it: something wrote past its own row, or freed slots in use."
    slot = _full_slot(report, arrays)
    if slot is None:
        return "it does not come from the allocator; compare the table with req_to_token in the dump."
    unit = report["geometry"]["page_size"] if found["unit"] == "page" else 1
    if found["group"] == "full" or mapping is None or not 0 <= slot < len(mapping):
        if slot // unit == found["index"]:
            return f"the request table says slot {slot} there: it was overwritten, or slots in use were freed."
        return f"it should be {found['unit']} {slot // unit} (slot {slot} of the request table): {BUILT_WRONG}"
    mapped = int(mapping[slot])
    if mapped // unit == found["index"]:
        if found["kind"] == "padding":
            return (
                f"the key is inside the window, but its full slot {slot} has no sliding slot any more: it was freed too early "
                "(eviction counts the window differently), or another request's free cleared the mapping."
            )
        return f"full slot {slot} is mapped to it: the full-to-sliding mapping itself was overwritten."
    if slot // unit == found["index"]:
        return (
            f"it is the full {found['unit']} itself, the sliding one is {mapped // unit}: sliding layers follow the full table into their "
            "own buffer (a flag cached from another pool, as fa4's draft has it)."
        )
    return f"it should be {found['unit']} {mapped // unit} (sliding slot {mapped} of full slot {slot}): {BUILT_WRONG}"


def _full_slot(report: Mapping[str, Any], arrays: Mapping[str, "np.ndarray[Any, Any]"]) -> int | None:
    """The slot in the request table at the illegal entry's position; None if the position is not known."""
    found, tables = report["violation"], report["tables"]
    source = next((i for i, each in enumerate(tables) if each["name"] == "req_to_token"), None)
    if source is None or "out_cache_loc" in found["table"]:
        return None
    position = found["entry"] * (report["geometry"]["page_size"] if found["unit"] == "page" else 1)
    if found["table"] == "window_kv_indices":  # a row ends where triton's list of all keys ends
        ends = [
            next(each["ends"][found["row"]] - each["starts"][found["row"]] for each in tables if each["name"] == name)
            for name in ("kv_indices", "window_kv_indices")
        ]
        position += ends[0] - ends[1]
    if not 0 <= position < tables[source]["ends"][found["row"]]:
        return None
    return int(arrays[f"table{source}"][found["row"], position])
