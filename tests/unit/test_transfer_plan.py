"""The transfer plan moves every head of both groups to its place, nothing else, and nothing twice; wrong plans are found."""

import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sglang_gemma4 import cli
from sglang_gemma4.disaggregation import plan, plan_table
from sglang_gemma4.disaggregation.plan import Group, PlanError
from sglang_gemma4.kernels.kv_cache import formats

SIZES = (1, 2, 4, 8)
PAIRS = tuple(itertools.product(SIZES, SIZES))
MODELS = {name: plan_table.groups(name) for name in plan_table.SIZES}
INT8 = "26b-a4b, int8"
MODELS[INT8] = plan_table.groups("26b-a4b", "int8_per_token_head")
UNTOUCHED = -1
LAYERS = 5


def _model(name: str, window: int = 40) -> list[Group]:
    """A size with a short window and few layers, which the plan treats as any other: still more buffers than replicas."""
    return [dataclasses.replace(group, window=group.window and window, layers=min(group.layers, LAYERS)) for group in MODELS[name]]


def _kv(group: Group, tokens: int) -> Any:
    """What the model computes: ``[buffers, tokens, heads]``, each value once."""
    return np.arange(group.entries * tokens * group.heads, dtype=np.int64).reshape(group.entries, tokens, group.heads)


def _slots(order: Any, page_size: int) -> Any:
    return (order[:, None] * page_size + np.arange(page_size)).ravel()


def problem(groups: list[Group], prefill: int, decode: int, page_size: int, tokens: int, prefix: int, exact: bool) -> str | None:
    """What is wrong after all ranks have sent one request by the plan; None if every byte is in its place.

    Args:
        exact: the prefill server names the pages that the decode server asks for; else all of its own, for the plan to cut.
    """
    count, written = -(-tokens // page_size), 0
    pool = 2 * count + 3
    for number, group in enumerate(groups):
        random = np.random.default_rng(number)
        kv: Any = np.full((group.entries, count * page_size, group.heads), UNTOUCHED, dtype=np.int64)
        kv[:, :tokens] = _kv(group, tokens)
        wanted = plan.pages(tokens, prefix, page_size, group.window)
        there_are = wanted if exact else plan.pages(tokens, 0, page_size, group.window)
        for target in range(decode):
            there = plan.held(group.heads, decode, target)
            target_pages = random.permutation(pool)[: len(wanted)]
            received: Any = np.full((group.entries, pool * page_size, len(there)), UNTOUCHED, dtype=np.int64)
            for source in plan.paired(prefill, decode, target):
                here = plan.held(group.heads, prefill, source)
                source_pages = random.permutation(pool)[: len(there_are)]
                rank: Any = np.full((group.entries, pool * page_size, len(here)), UNTOUCHED - 1, dtype=np.int64)
                at = _slots(np.arange(there_are.start, there_are.stop), page_size)
                rank[:, _slots(source_pages, page_size)] = kv[:, at, here.start : here.stop]
                part = plan.share(group.heads, prefill, decode, source, target)
                assert part is not None
                if max(part.source + part.heads - len(here), part.target + part.heads - len(there)) > 0:
                    return f"{group.name}: past the heads of a rank"
                sent = plan.newest(list(source_pages), list(target_pages), group.name)
                for entry in part.entries(group.entries):
                    values = rank[entry, _slots(np.array(sent, dtype=int), page_size), part.source : part.source + part.heads]
                    received[entry, _slots(target_pages, page_size), part.target : part.target + part.heads] = values
                    written += values.size * group.sizes[entry]
            expected = np.full_like(received, UNTOUCHED)
            at = _slots(np.arange(wanted.start, wanted.stop), page_size)
            expected[:, _slots(target_pages, page_size)] = kv[:, at, there.start : there.stop]
            if not np.array_equal(received, expected):
                return f"{group.name}: other bytes on decode rank {target} of {decode} for {prefill} prefill ranks"
    least = plan.least_bytes(groups, decode, tokens, page_size, prefix)
    return None if written == least else f"{written} bytes sent for {least}"


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("name", MODELS)
def test_every_head_arrives_once(name: str, page_size: int) -> None:
    groups = _model(name)
    for prefill, decode in PAIRS:
        for tokens, prefix in ((7, 0), (100, 0), (100, 64), (130, 128)):
            for exact in (True, False):
                assert problem(groups, prefill, decode, page_size, tokens, prefix, exact) is None, (prefill, decode, tokens, prefix)


def _modulo(heads: int, size: int, rank: int) -> range:
    """A replica map by remainder; SGLang's ranks that hold one head are consecutive."""
    return range(rank % heads, rank % heads + 1) if heads < size else HELD(heads, size, rank)


def _swapped(change: Callable[[plan.Share], plan.Share]) -> Callable[..., plan.Share | None]:
    def share(*args: Any) -> plan.Share | None:
        part = SHARE(*args)
        return part and change(part)

    return share


HELD, SHARE, PAGES = plan.held, plan.share, plan.pages
MUTANTS: dict[str, tuple[str, Any]] = {
    "no source offset": ("share", _swapped(lambda part: dataclasses.replace(part, source=0))),
    "no target offset": ("share", _swapped(lambda part: dataclasses.replace(part, target=0))),
    "one head too few": ("share", _swapped(lambda part: dataclasses.replace(part, heads=max(1, part.heads - 1)))),
    "a replica is missing": ("share", _swapped(lambda part: dataclasses.replace(part, replicas=part.replicas + (part.replicas > 1)))),
    "every replica sends": ("share", _swapped(lambda part: dataclasses.replace(part, replica=0, replicas=1))),
    "replicas by remainder": ("held", _modulo),
    "the oldest pages are kept": ("newest", lambda source, target, _what: source[: len(target)]),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_plan_is_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, wrong = MUTANTS[mutant]
    monkeypatch.setattr(plan, where, wrong)
    found = []
    for (prefill, decode), prefix in itertools.product(PAIRS, (0, 64)):
        try:
            found.append(problem(_model("26b-a4b"), prefill, decode, 16, 100, prefix, False))
        except (PlanError, ValueError, IndexError) as error:
            found.append(str(error))
    assert any(found), "no cell tells this plan from the right one"
    assert not all(found), "cells that the fault does not touch pass"


@pytest.mark.parametrize("group", [0, 1])
def test_one_head_count_for_both_groups_is_found(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = _model("26b-a4b")
    other = groups[1 - group].heads
    monkeypatch.setattr(plan, "share", lambda heads, *ranks: SHARE(other if heads == groups[group].heads else heads, *ranks))
    found = []
    for prefill, decode in PAIRS:
        try:
            found.append(problem(groups, prefill, decode, 16, 100, 0, True))
        except (PlanError, ValueError, IndexError) as error:
            found.append(str(error))
    assert any(found)


def test_a_window_one_page_off_is_found() -> None:
    tokens, window, page_size = 100, 40, 16
    right = plan.pages(tokens, 0, page_size, window)
    assert right == range(3, 7)
    assert plan.pages(tokens, 0, page_size, None) == range(7)
    assert plan.pages(tokens, 64, page_size, window) == range(4, 7), "what the decode server has is not sent"
    assert plan.pages(tokens, 48, page_size, window) == right, "a prefix older than the window changes nothing"
    assert plan.pages(7, 0, page_size, window) == range(1), "one page, partly filled"


@pytest.mark.parametrize(("prefill", "decode"), [pair for pair in PAIRS if pair[0] != pair[1]])
def test_the_head_count_that_both_sides_imply(prefill: int, decode: int) -> None:
    for heads in (1, 2, 4, 8, 16):
        found = plan.total_heads(prefill, max(1, heads // prefill), decode, max(1, heads // decode))
        for target in range(decode):
            for source in plan.paired(prefill, decode, target):
                ours, real = plan.share(found, prefill, decode, source, target), plan.share(heads, prefill, decode, source, target)
                assert ours == real, "a count that cannot be told from the real one sends the same"


def test_no_model_has_such_heads() -> None:
    with pytest.raises(PlanError, match="a prefill rank of 2 holds 4 KV heads of a layer and a decode rank of 4 holds 4"):
        plan.total_heads(2, 4, 4, 4)
    with pytest.raises(PlanError, match="a page of 1000 bytes does not hold whole heads of 512 bytes at page size 1"):
        plan.heads_in(1000, 1, 512)
    with pytest.raises(PlanError, match="asks for 3 pages, the prefill server has 2"):
        plan.newest([1, 2], [1, 2, 3], "sliding layers")
    with pytest.raises(PlanError, match="6 KV heads do not divide over 4"):
        plan.held(6, 4, 0)
    with pytest.raises(PlanError, match=r"sizes 2 .prefill. and 3 .decode."):
        plan.paired(2, 3, 0)
    with pytest.raises(PlanError, match="there are ranks 0 to 3"):
        plan.held(8, 4, 4)


def test_nothing_is_cut_where_nothing_is_asked_for() -> None:
    assert list(plan.newest([1, 2, 3], [], "full layers")) == []
    assert list(plan.newest([1, 2, 3], [7], "full layers")) == [3]


@pytest.mark.parametrize("name", MODELS)
def test_links_carry_the_least(name: str) -> None:
    groups = MODELS[name]
    for prefill, decode in PAIRS:
        links = plan.link_bytes(groups, prefill, decode, 5000, 16, 64)
        least = plan.least_bytes(groups, decode, 5000, 16, 64)
        assert sum(links.values()) == least
        repeated = plan.repeated_bytes(groups, prefill, decode, 5000, 16, 64)
        assert (repeated > 0) == (prefill > decode and any(group.heads < prefill for group in groups))


def test_stock_sends_each_full_head_of_26b_four_times() -> None:
    full = [MODELS["26b-a4b"][0]]
    assert plan.repeated_bytes(full, 8, 2, 1000) == 3 * plan.least_bytes(full, 2, 1000)


def test_the_table() -> None:
    transfer = plan_table.Transfer(MODELS["26b-a4b"], 2, 4, 8000)
    text = plan_table.markdown(transfer)
    assert "| 0 | 1 | 1 of 2 from 0 to 0, 10 of 10 | 2 of 8 from 2 to 0, 50 of 50 |" in text
    assert "1.00 of the least" in text
    with pytest.raises(ValueError, match="13b: no Gemma 4 size; there are e2b"):
        plan_table.groups("13b")


def test_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """A table that fits a terminal, Markdown where it is asked for, or one JSON object; the numbers are the same."""
    words = ["transfer-plan", "31b", "--prefill-tp", "8", "--decode-tp", "2", "--tokens", "32000", "--prefix", "16000"]
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-3])) <= 80
    assert "|" not in "".join(lines)
    assert cli.main([*words, "--markdown"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")][2:]
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(rows) == len(found["links"]) == 8
    assert lines[1].split() == ["0", "0", "full", "1", "of", "4", "0", "0", "10", "of", "20", f"{found['links'][0]['bytes'] / 2**20:,.2f}"]
    assert lines[2].split()[:4] == ["sliding", "2", "of", "16"]
    sums = found["bytes"] / 2**20, found["of_least"], found["avoided_bytes"] / 2**20, found["busiest_of_mean"]
    said = "{:,.2f} MiB for 32,000 tokens (16,000 of them on the decode server), {:.2f} of the least."
    assert lines[-3] == said.format(*sums)
    assert f"{sums[2]:,.2f} MiB" in lines[-2]
    assert f"{sums[3]:.2f} of the mean" in lines[-1]
    assert sum(link["bytes"] for link in found["links"]) == found["bytes"]


def test_scales_are_four_bytes_of_a_head_in_buffers_of_their_own() -> None:
    for plain, quantised in zip(MODELS["26b-a4b"], MODELS[INT8], strict=True):
        assert quantised.entries == 2 * plain.entries
        assert sum(quantised.sizes) == sum(plain.sizes) // 2 + 4 * plain.entries
    assert "| 0 | 1 | 1 of 2 from 0 to 0, 20 of 20 | 2 of 8 from 2 to 0, 100 of 100 |" in plan_table.markdown(
        plan_table.Transfer(MODELS[INT8], 2, 4, 8000)
    )


def test_the_table_knows_each_format_with_scales() -> None:
    assert set(plan_table.SCALED) == set(formats.FORMATS)
    assert plan_table.SCALE_BYTES == formats.SCALE_BYTES


def test_the_layers_of_12b() -> None:
    full, sliding = MODELS["12b"]
    assert (full.layers, full.heads, full.head_bytes) == (8, 1, 1024)
    assert (sliding.layers, sliding.heads, sliding.head_bytes, sliding.window) == (40, 8, 512, 1024)
