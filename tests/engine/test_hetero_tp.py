"""KV between prefill and decode servers of different size, by SGLang's own managers in a process for each rank.

NIXL: real agents over host memory. Mooncake: SGLang's manager, the kernel moves the bytes in the library's place. Every byte of every
decode rank's pools is compared: full and sliding layers against the reference layout of heads, all other pages against what they were.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.disaggregation import plan
from sglang_gemma4.disaggregation.plan import Group
from tests.harness.engine_fork import Nursery

FOLDER = Path(__file__).parents[2] / "crash_repro"
sys.path.append(str(FOLDER))
import rank_memory  # type: ignore[import-not-found]  # noqa: E402 - the ranks' harness is crash_repro's

PAIRS = [pair for pair in itertools.product((1, 2, 4, 8), repeat=2) if pair[0] != pair[1]]
# A whole prompt; one in chunks of which the decode server has a part; a page that is partly filled; a window older than the prefix.
REQUESTS = (
    {"room": 1, "tokens": 130},
    {"room": 2, "tokens": 100, "prefix": 64, "chunk": 32},
    {"room": 3, "tokens": 7},
    {"room": 4, "tokens": 200, "prefix": 64},
)
PAGE_SIZES = (1, 16, 64)
MODELS = ("e2b", "e4b", "12b", "26b-a4b", "31b")
SHORT = {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "12", "UCX_TCP_MAX_CONN_RETRIES": "2"}
"""UCX tries 25 times to reach a process that has died, and NIXL holds the GIL of the prefill rank's process meanwhile: a minute."""


def try_cells(nursery: Nursery, *cells: dict[str, Any], stock: bool = False) -> list[dict[str, Any]]:
    """What became of each."""
    arm = {"SGLANG_GEMMA4": "0"} if stock else {"SGLANG_GEMMA4_STRICT": "1"}
    status, printed = nursery.run_script(FOLDER / "hetero_tp.py", arm, 300.0 * len(cells), False, json.dumps(cells))
    found = [json.loads(line.removeprefix("CELL ")) for line in printed.splitlines() if line.startswith("CELL ")]
    assert status == 0, printed[-3000:]
    assert len(found) == len(cells), printed[-3000:]
    return found


def cell(model: str, prefill: int, decode: list[int], page_size: int = 16, **more: Any) -> dict[str, Any]:
    return {"model": model, "prefill": prefill, "decode": decode, "page_size": page_size, "requests": REQUESTS, **more}


def least(tried: dict[str, Any]) -> int:
    """Bytes that the decode server's ranks hold of the requests."""
    model = rank_memory.MODELS[tried["model"]]
    kinds = [("full", model.full, None), ("sliding", model.sliding, model.window)]
    size, scale = (1, 4) if tried.get("kv_format") else (2, 0)
    groups = [Group(name, layers.count, layers.heads, size * layers.head_dim, window, scale) for name, layers, window in kinds]
    return sum(
        plan.least_bytes(groups, tried["decode"][0], request["tokens"], tried["page_size"], request.get("prefix", 0))
        for request in tried["requests"]
    )


def check(nursery: Nursery, *cells: dict[str, Any]) -> None:
    for tried, found in zip(cells, try_cells(nursery, *cells), strict=True):
        assert found["wrong"] is None, tried
        if tried.get("backend", "nixl") == "nixl":
            assert found["bytes"] == least(tried), "nothing goes twice"


@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_every_byte(prefill: int, decode: int, nursery: Nursery) -> None:
    check(nursery, cell("26b-a4b", prefill, [decode]))


@pytest.mark.parametrize(
    ("model", "prefill", "decode", "page_size"),
    [("e2b", 2, 4, 16), ("e2b", 8, 1, 1), ("e4b", 4, 1, 64), ("31b", 8, 2, 16), ("31b", 1, 4, 1), ("12b", 4, 2, 1), ("26b-a4b", 2, 2, 64)],
)
def test_other_models_and_page_sizes(model: str, prefill: int, decode: int, page_size: int, nursery: Nursery) -> None:
    check(nursery, cell(model, prefill, [decode], page_size))


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("model", MODELS)
def test_all_pairs(model: str, page_size: int, nursery: Nursery) -> None:
    check(nursery, *(cell(model, prefill, [decode], page_size) for prefill, decode in itertools.product((1, 2, 4, 8), repeat=2)))


def test_the_released_sizes_of_heads_and_window(nursery: Nursery) -> None:
    requests = [{"room": 1, "tokens": 1500, "chunk": 512}, {"room": 2, "tokens": 300}]
    check(nursery, cell("26b-a4b-full-size", 2, [4], 64, requests=requests), cell("26b-a4b-full-size", 4, [1], 64, requests=requests))


@pytest.mark.parametrize(("prefill", "decode"), [(2, 4), (4, 2), (4, 1), (8, 2)])
def test_mooncake(prefill: int, decode: int, nursery: Nursery) -> None:
    check(nursery, cell("26b-a4b", prefill, [decode], backend="mooncake"))


@pytest.mark.parametrize(
    ("kv_format", "backend", "prefill", "decode"),
    [
        ("int8_per_token_head", "nixl", 2, 1),
        ("int8_per_token_head", "nixl", 1, 2),
        ("int8_per_token_head", "nixl", 2, 4),
        ("int8_per_token_head", "nixl", 4, 2),
        ("int8_per_token_head", "nixl", 2, 2),
        ("fp8_per_token_head", "nixl", 2, 4),
        ("int8_per_token_head", "mooncake", 2, 4),
        ("int8_per_token_head", "mooncake", 4, 2),
        ("fp8_per_token_head", "mooncake", 1, 1),
    ],
)
def test_scales_go_with_their_heads(kv_format: str, backend: str, prefill: int, decode: int, nursery: Nursery) -> None:
    """Of equal sizes SGLang's own code sends them."""
    check(nursery, cell("26b-a4b", prefill, [decode], backend=backend, kv_format=kv_format))


def test_a_cache_that_arrives_without_its_scales_is_found(nursery: Nursery) -> None:
    tried = cell("26b-a4b", 2, [4], kv_format="int8_per_token_head", mutant="scales are dropped", seconds=10.0, backend="mooncake")
    assert "buffer 10 of the full layers differs at slot" in try_cells(nursery, tried)[0]["wrong"]


def test_one_prefill_server_feeds_servers_of_two_sizes(nursery: Nursery) -> None:
    requests = [*REQUESTS, {"room": 9, "tokens": 90, "server": 1}]
    found = try_cells(nursery, cell("26b-a4b", 1, [2, 4], requests=requests))
    assert found[0]["wrong"] is None


@pytest.mark.parametrize("backend", ["nixl", "mooncake"])
def test_a_window_longer_than_asked_for_is_cut_at_its_old_end(backend: str, nursery: Nursery) -> None:
    cells = [cell("26b-a4b", 2, [4], backend=backend, exact=False)]
    if backend == "mooncake":
        cells.append(cell("26b-a4b", 1, [1], backend=backend, exact=False))
    check(nursery, *cells)


WRONG = {
    "one head count": (2, 4, "sliding"),
    "one head for full layers": (1, 2, "full"),
    "source offset 0": (2, 4, "sliding"),
    "target offset 0": (8, 2, "sliding"),
    "a replica is missing": (8, 2, "full"),
    "the oldest pages": (2, 4, "sliding"),
    "slots of full layers": (2, 4, "full"),
    "slots of sliding layers": (2, 4, "sliding"),
}
"""Wrong plans (``rank_life.MUTANTS``), each with prefill and decode ranks and the group in which it must show."""


@pytest.mark.parametrize("mutant", WRONG)
def test_a_wrong_plan_is_found(mutant: str, nursery: Nursery) -> None:
    prefill, decode, group = WRONG[mutant]
    found = try_cells(nursery, cell("26b-a4b", prefill, [decode], exact=False, mutant=mutant, seconds=10.0))
    assert f"of the {group} layers differs at slot" in found[0]["wrong"]


def fault(nursery: Nursery, what: str, prefill: int, decode: list[int], backend: str = "nixl") -> dict[int, list[str]]:
    """Room 2 is the victim; by room why requests failed. Bytes of all others are compared."""
    requests = [{"room": 1, "tokens": 130}, {"room": 2, "tokens": 300, "chunk": 16}, {"room": 3, "tokens": 70}]
    if len(decode) > 1:
        requests = [requests[1], {"room": 5, "tokens": 64, "server": 1}]
    tried = cell("26b-a4b", prefill, decode, requests=requests, fault=what, backend=backend, env=SHORT, seconds=60.0)
    found = try_cells(nursery, tried)[0]
    assert found["wrong"] is None
    assert bool(found["died"]) == what.endswith("dies")
    return {int(room): reasons for room, reasons in found["requests"].items()}


def only_room_2_failed(reasons: dict[int, list[str]]) -> None:
    assert reasons.pop(2), "the victim failed"
    assert not any(reasons.values()), "the others did not"


def test_a_prefill_rank_that_is_killed(nursery: Nursery) -> None:
    reasons = fault(nursery, "prefill rank dies", 2, [1])
    assert any("timed out after" in reason for reason in reasons[2])
    only_room_2_failed(reasons)


def test_a_decode_rank_that_vanishes(nursery: Nursery) -> None:
    only_room_2_failed(fault(nursery, "decode rank dies", 1, [2, 4]))


@pytest.mark.parametrize("backend", ["nixl", "mooncake"])
def test_an_aborted_request(backend: str, nursery: Nursery) -> None:
    reasons = fault(nursery, "aborted", 2, [1], backend)
    assert any("Aborted by AbortReq" in reason for reason in reasons[2])
    only_room_2_failed(reasons)


@pytest.mark.parametrize("backend", ["nixl", "mooncake"])
def test_a_decode_server_of_another_model_is_refused_by_name(backend: str, nursery: Nursery) -> None:
    reasons = fault(nursery, "serves 31b", 1, [2, 4], backend)
    assert any("the prefill server has 10 KV buffers, the decode server 20" in reason for reason in reasons[2])
    only_room_2_failed(reasons)


def test_the_staging_buffer_is_refused_by_name(nursery: Nursery) -> None:
    staging = {"SGLANG_DISAGG_STAGING_BUFFER": "1", "SGLANG_DISAGG_STAGING_POOL_SIZE_MB": "16"}
    found = try_cells(nursery, cell("26b-a4b", 2, [1], env=staging, fault="refused", seconds=60.0))[0]
    assert found["wrong"] is None, "the ranks start, and bytes of nobody change"
    reasons = found["requests"]
    assert len(reasons) == len(REQUESTS)
    assert all(any("SGLANG_DISAGG_STAGING_BUFFER=1" in reason for reason in each) for each in reasons.values()), reasons
