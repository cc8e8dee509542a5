"""The calculation of what fits a card: against what engines logged, and the command's table and errors."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sglang_gemma4 import cli
from sglang_gemma4.memory import capacity, capacity_rows, capacity_table, fractions, model_bytes, reserve, swa_sizing
from sglang_gemma4.memory.capacity import CARDS, GIB, Card, Server
from sglang_gemma4.patching import switches
from sglang_gemma4.tiny.quantisation import FORMATS
from sglang_gemma4.tiny.real_sizes import SIZES

H100, H200 = CARDS["80 GB"], CARDS["141 GB"]
# GiB of KV that engines logged: size, card, MTP, --mem-fraction-static, whether images stay on the card, and the run.
LOGGED = [
    ("26b-a4b", H200, False, 0.85, False, 69.178),  # 2026-11-21-26b-stock-steps
    ("26b-a4b", H200, True, 0.85, False, 68.377),  # 2026-11-22-26b-kernels-serve
    ("26b-a4b", H200, True, 0.85, True, 66.016),  # 2026-11-24-26b-beside-vllm
    ("26b-a4b", H200, True, 0.8260405859375, True, 62.720),  # 2026-11-23-26b-serve, 2026-11-24-26b-serve-again
    ("26b-a4b", H200, False, 0.8269503222656249, False, 65.970),  # 2026-11-22-26b-adaptive
    ("26b-a4b", H200, True, 0.8269503222656249, False, 65.169),  # 2026-11-22-26b-mtp-steps
    ("26b-a4b", H200, False, 0.6, False, 34.380),  # 2026-11-22-26b-kernels-plain
    ("26b-a4b", H200, True, 0.6, False, 33.579),  # 2026-11-22-26b-kernels-steps
    ("26b-a4b", H200, True, 0.48, False, 16.876),  # 2026-11-21-26b-80gb
    ("26b-a4b", H100, True, 0.85, True, 14.488),  # 2026-11-25-26b-h100-beside, -mended
    ("26b-a4b", H100, True, 0.9, True, 18.336),  # 2026-11-26-26b-h100-peer
    ("e2b", H200, False, 0.85, False, 108.149),  # 2026-11-21-e2b-prefill
    ("e2b", H200, True, 0.85, True, 105.651),  # 2026-11-26-e2b-h200-peer
    ("e4b", H200, True, 0.85, True, 100.333),  # 2026-11-26-e4b-h200-peer
]


@pytest.mark.parametrize(("name", "card", "mtp", "fraction", "on_card", "logged"), LOGGED)
def test_bytes_for_kv_are_those_that_engines_logged(
    name: str, card: Card, mtp: bool, fraction: float, on_card: bool, logged: float
) -> None:
    found = capacity.budget(model_bytes.need(name), card, Server(mtp), fraction, package=on_card) / GIB
    assert found == pytest.approx(logged, rel=0.01)


def test_the_reserve_of_an_80_gb_card_is_the_one_that_its_engine_calculated() -> None:
    """Run 2026-11-25-26b-h100-reserve: 0.905 and 19.721 GiB. Joined graphs' keys in order count since then; 2 GiB more stay."""
    needed, server = model_bytes.need("26b-a4b"), Server(mtp=True, running=64)
    ran = fractions.steps(needed, H100, server)
    assert ran.joined
    assert ran.ordered_keys == 2048 + (32 << 10)
    assert ran.decode_graphs == 27, "settings.cuda_graph_config.decode.bs of that run"
    then = reserve.fraction(reserve.of(needed.text, needed.vision, replace(ran, ordered_keys=0)).total, H100.mib * reserve.MIB)
    assert then == 0.905
    assert fractions.both(needed, H100, server)[1] == pytest.approx(0.903 - reserve.MARGIN / H100.free, abs=0.001)
    assert capacity.budget(needed, H100, server, then, reserved=True) / GIB == pytest.approx(19.721, rel=0.005)


def test_joined_graphs_count_where_the_engine_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default those of the MoE model on one card; of others where the operator asks."""

    def joined(name: str, tp: int = 1) -> bool:
        return fractions.steps(model_bytes.need(name, tp=tp), H100, Server(True, tp=tp)).joined

    assert [joined(name) for name in ("26b-a4b", "31b")] == [True, False]
    assert not joined("26b-a4b", tp=2)
    monkeypatch.setenv(switches.BESIDE, "1")
    assert joined("31b")
    monkeypatch.setenv(switches.BESIDE, "0")
    assert fractions.steps(model_bytes.need("26b-a4b"), H100, Server(True)).ordered_keys == 0


# Full and sliding tokens of this package's pools, --max-running-requests and --mem-fraction-static, and the run.
POOLS = [
    ("26b-a4b", H100, 64, 0.85, 139_515, 62_004),  # 2026-11-25-26b-h100-beside
    ("26b-a4b", H100, 64, 0.905, 189_915, 84_402),  # 2026-11-25-26b-h100-reserve
    ("26b-a4b", H100, 64, 0.9, 176_579, 78_475),  # 2026-11-26-26b-h100-peer
    ("e2b", H200, 80, 0.85, 16_367_401, 1_048_212),  # 2026-11-26-e2b-h200-peer
    ("e4b", H200, 80, 0.85, 5_628_389, 378_802),  # 2026-11-26-e4b-h200-peer
]


@pytest.mark.parametrize(("name", "card", "running", "fraction", "full", "sliding"), POOLS)
def test_the_packages_tokens_are_those_that_engines_logged(
    name: str, card: Card, running: int, fraction: float, full: int, sliding: int
) -> None:
    needed, server = model_bytes.need(name), Server(True, running)
    left = capacity.budget(needed, card, server, fraction, reserved=fraction == 0.905)
    found = capacity.by_window(needed, left, server, card)
    assert [found.full, found.sliding] == pytest.approx([full, sliding], rel=0.02)


def test_31b_starts_by_default_on_80_gb_with_what_its_engine_logged() -> None:
    """Run 2026-11-26-26b-h100-peer: "--mem-fraction-static 0.913 in place of SGLang's --mem-fraction-static 0.75963"."""
    needed, server = model_bytes.need("31b"), Server(True)
    fraction, reserved = fractions.default(needed, H100, server)
    assert fractions.both(needed, H100, server)[0] == pytest.approx(0.75963, abs=1e-5)
    assert (fraction, reserved) == (0.913, True)
    found = capacity.by_window(needed, capacity.budget(needed, H100, server, fraction, reserved=True), server, H100)
    assert [found.full, found.sliding] == pytest.approx([32_773, 9_462], rel=0.02)


# Tokens: what stock's and the package's engines logged (runs 2026-11-21-26b-stock-steps, -26b-swa-ratio, -26b-swa-sizing, -e2b-prefill).
STOCK_LOGGED = [("26b-a4b", False, 402_990, 322_392), ("26b-a4b", True, 365_809, 292_647), ("e2b", False, 3_115_440, 2_492_352)]


@pytest.mark.parametrize(("name", "mtp", "full", "sliding"), STOCK_LOGGED)
def test_stock_s_tokens_are_those_that_engines_logged(name: str, mtp: bool, full: int, sliding: int) -> None:
    needed, server = model_bytes.need(name), Server(mtp)
    found = capacity.stock(needed, capacity.budget(needed, H200, server, 0.85, package=False), server)
    assert [found.full, found.sliding] == pytest.approx([full, sliding], rel=0.01)


def test_an_80_gb_card_s_trial() -> None:
    """18.15 GiB for KV on an H100. Its flags are not known: text alone at 0.85 gives as much, and so do images at 0.9; images at 0.85 do
    not by far. ``sglang-gemma4 serve`` says them in its log (``server_args=``), and "avail mem" beside "Load weight begin"."""
    needed = model_bytes.need("26b-a4b")
    assert capacity.budget(needed, H100, Server(mtp=True, images=False), 0.85) / GIB == pytest.approx(18.153, rel=0.02)
    assert capacity.budget(needed, H100, Server(mtp=True), 0.9) / GIB == pytest.approx(18.153, rel=0.02)
    assert capacity.budget(needed, H100, Server(mtp=True), 0.85) / GIB < 15


def test_sizes_are_those_of_the_engine_s_own_arithmetic() -> None:
    """The table's pools are ``swa_sizing``'s for the same bytes; the engine's are in ``test_memory_pools``."""
    needed, server = model_bytes.need("26b-a4b"), Server(mtp=True, running=64)
    left = 18.153 * GIB
    stock = swa_sizing.Stock(needed.all_full + needed.draft_layers * needed.full_layer, needed.all_sliding)
    asks = capacity.demand(needed, mtp=True)
    expected = swa_sizing.solve(asks, int(left), needed.own_full, needed.own_sliding, 64, stock)
    found = capacity.by_window(needed, left, server)
    assert (found.full, found.sliding) == (expected.full, expected.sliding) == (174_820, 77_692)
    assert [found.requests(length) for length in (1000, 1500, 2500, 8500, 32_500)] == [64, 64, 64, 20, 5]
    assert found.per_request == 1023 + 128 + 4 + 8 + 2


def test_flags_change_the_sizes() -> None:
    needed = model_bytes.need("26b-a4b")
    left = capacity.budget(needed, H200, Server(mtp=True), 0.85)
    few, many = (capacity.by_window(needed, left, Server(mtp=True, running=running)) for running in (8, 200))
    assert many.sliding > few.sliding
    small, large = (capacity.by_window(needed, left, Server(mtp=True, chunk=chunk)) for chunk in (2048, 32_768))
    assert large.sliding > small.sliding
    assert capacity.by_window(needed, left, Server(mtp=True, draft_tokens=16)).per_request > few.per_request
    assert capacity.by_window(needed, left, Server(mtp=True), length=30_000).full > capacity.by_window(needed, left, Server(mtp=True)).full


def test_what_starts_on_an_80_gb_card() -> None:
    """Every size by default, with and without MTP; 31B, for which SGLang's own fraction leaves nothing, with the calculated reserve."""
    for name in ("e2b", "e4b", "12b", "26b-a4b", "31b"):
        needed = model_bytes.need(name)
        for mtp in (False, True):
            server = Server(mtp)
            by_rule, calculated = fractions.both(needed, H100, server)
            assert (capacity.budget(needed, H100, server, by_rule) > 0) is (name != "31b")
            fraction, reserved = fractions.default(needed, H100, server)
            assert reserved is (name == "31b")
            assert fraction == (pytest.approx(calculated + reserve.MARGIN / H100.free, abs=0.003) if reserved else by_rule)
            left = capacity.budget(needed, H100, server, fraction, reserved=reserved)
            assert capacity.by_window(needed, left, server).full > (25_000 if name == "31b" else 30_000)
            assert fractions.default(needed, H200, server) == (fractions.both(needed, H200, server)[0], False)


Table = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def table(capsys: pytest.CaptureFixture[str]) -> Table:
    """Rows of ``capacity --json`` with these words."""

    def read(*words: str) -> list[dict[str, Any]]:
        assert cli.main(["capacity", *words, "--json"]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    return read


def test_the_table_says_who_chose_the_fraction(table: Table) -> None:
    stock, package, _, by_auto, small, *_ = table("31b", "--gpu", "80", "--gpu", "48", "--mtp", "no")
    assert (stock["mem_fraction_static"], stock["fraction_chosen_by"]) == (pytest.approx(0.760, abs=5e-4), "SGLang")
    assert (package["fraction_chosen_by"], by_auto["fraction_chosen_by"]) == ("fallback", "auto")
    assert package["mem_fraction_static"] > 0.9
    assert "too few for weights" in stock["problem"]
    assert (stock["full_tokens"], stock["requests"]) == (None, [])
    assert package["full_tokens"] == pytest.approx(32_770, rel=0.001), "as calculated"
    assert 8192 < by_auto["full_tokens"] < package["full_tokens"], "where a start would work without it 2 GiB more are left"
    assert small["gpu"] == "48 GB"
    assert "too few for weights" in small["problem"]


@pytest.mark.parametrize(
    ("said", "mib"), [("H100", 81_559), ("80", 81_559), ("80GB", 81_559), ("48 gb", 46_068), ("l40s", 46_068), ("64", 65_536)]
)
def test_a_card_has_several_names(said: str, mib: float) -> None:
    assert capacity.card(said).mib == mib


def test_formats_take_their_bytes() -> None:
    """26B-A4B: 24.1 billion parameters are in products that are quantised, 0.74 in the head; 4 bits and a scale for 32 are 0.5625 bytes."""
    plain = model_bytes.need("26b-a4b").weights
    float8, int4 = (model_bytes.need("26b-a4b", form=FORMATS[name]).weights for name in ("fp8-dynamic", "w4a16-g32"))
    saved = plain - float8
    assert saved / 1e9 == pytest.approx(24.4, rel=0.03)
    assert plain - int4 == pytest.approx(saved * (2 - 0.5625), rel=0.01), "tensors are rounded up"
    assert model_bytes.need("e2b", form=FORMATS["fp8-dynamic"]).draft == model_bytes.need("e2b").draft
    with pytest.raises(ValueError, match="groups of 128 do not divide intermediate_size 2112 of 26b-a4b; its GEMMs take fp8-dynamic"):
        model_bytes.need("26b-a4b", form=FORMATS["w4a16-g128"])


def test_on_hopper_the_package_keeps_room_for_a_layer_s_four_bit_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 experts' gate and up in bfloat16, 0.95 GiB, and a full layer's 16 + 2 + 2 heads of 512; stock and older cards keep none."""
    monkeypatch.setenv("SGLANG_GEMMA4_WITHOUT", "dense_copies")
    room = (128 * 2 * 704 + 20 * 512) * 2816 * 2
    needed = model_bytes.need("26b-a4b", form=FORMATS["w4a16-g32"])
    server = Server(mtp=True, images=False)
    kept = {
        name: capacity.budget(needed, capacity.CARDS[name], server, 0.85, package=False)
        - capacity.budget(needed, capacity.CARDS[name], server, 0.85)
        for name in capacity.CARDS
    }
    assert kept == {"24 GB": 0, "32 GB": 0, "48 GB": 0, "80 GB": room, "141 GB": room}
    assert model_bytes.need("26b-a4b", tp=2, form=FORMATS["w4a16-g32"]).written_out == room / 2
    assert model_bytes.need("31b", form=FORMATS["w4a16-g128"]).written_out == 2 * 21504 * 5376 * 2, "gate and up"
    assert model_bytes.need("26b-a4b").written_out == model_bytes.need("26b-a4b", form=FORMATS["fp8-dynamic"]).written_out == 0


def test_copies_of_dense_weights_are_counted_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(size: str) -> list[float]:
        needed = model_bytes.need(size, form=FORMATS["w4a16-g32"])
        return [capacity.budget(needed, where, Server(mtp=True, images=False), 0.85) for where in CARDS.values()]

    found = {size: left(size) for size in ("26b-a4b", "31b")}
    monkeypatch.setenv("SGLANG_GEMMA4_WITHOUT", "dense_copies")
    before = {size: left(size) for size in found}
    taken = {size: [one - other for one, other in zip(before[size], kept, strict=True)] for size, kept in found.items()}
    qkv = 25 * (16 + 2 * 8) * 256 + 5 * (16 + 2 + 2) * 512  # keys are values in full layers, and lie there twice
    o, feed_forward = 25 * 16 * 256 + 5 * 16 * 512, 30 * 3 * 2112
    copies = 2 * 2816 * (qkv + o + feed_forward)
    assert taken == {"26b-a4b": pytest.approx([0, 0, 0, copies, copies]), "31b": [0] * 5}
    assert 3.09 < copies / 2**30 < 3.37, "an H200 had 3.37 GiB less, the allocator's rounding among it"
    monkeypatch.delenv("SGLANG_GEMMA4_WITHOUT")
    monkeypatch.setenv("SGLANG_GEMMA4_FOUR_BIT_ROWS", "0")
    assert left("26b-a4b") == before["26b-a4b"], "Marlin has repacked them"


def test_a_row_for_each_format_that_divides_the_model(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["26b-a4b", "--gpu", "32", "--mtp", "yes", "--mem-fraction-static", "0.85", "--language-model-only", "--quantization"]
    rows = [row for row in table(*words, "all") if row["engine"] == "package"]
    assert [row["quantization"] for row in rows] == ["bfloat16", "fp8-dynamic", "fp8-static", "w4a16-g32", "w4a16-asym-g32"]
    assert "too few for weights" in rows[0]["problem"]
    assert rows[3]["full_tokens"] > 50_000, "4 bits fit a GPU of 32 GB"
    assert cli.main(["capacity", *words, "fp8-block"]) == 2
    assert "blocks of 128 do not divide" in capsys.readouterr().err


def test_requests_that_fit_both_pools() -> None:
    assert capacity.Pools(full=100, sliding=900, per_request=20).requests(20) == 5
    assert capacity.Pools(full=100_000, sliding=1460, per_request=146).requests(1000) == 10
    assert capacity.Pools(full=100_000, sliding=1460, per_request=146, limit=7).requests(1000) == 7


def test_the_command(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*words: str) -> list[dict[str, Any]]:
        return table("26b-a4b", "--card", "H100", "--mtp", "yes", *words)

    assert [(row["engine"], row["fraction_chosen_by"]) for row in rows()] == [
        ("stock", "SGLang"), ("package", "SGLang"), ("stock", "auto"), ("package", "auto")
    ]  # fmt: skip
    package = rows()[1::2]
    assert package[1]["kv_gib"] > package[0]["kv_gib"] + 8
    cpu = rows("--mem-fraction-static", "0.85", "--mm-feature-transport", "cpu")
    assert cpu[0]["kv_gib"] == cpu[1]["kv_gib"]
    _, one = rows("--mem-fraction-static", "0.85", "--language-model-only", "--max-running-requests", "64")
    assert (one["model"], one["gpu"], one["mtp"], one["mem_fraction_static"]) == ("26b-a4b", "80 GB", True, 0.85)
    first, second, third, last = (found["at_once"] for found in one["requests"])
    assert (first, last) == (64, 5)
    assert 60 <= second <= 69
    assert third in (19, 20)
    assert [found["prompt_tokens"] for found in one["requests"]] == [500, 2000, 8000, 32_000]
    monkeypatch.setenv(switches.REQUEST_TOKENS, "32500")
    _, long = rows("--mem-fraction-static", "0.85", "--language-model-only")
    assert long["requests"][3]["at_once"] > 5


@pytest.mark.parametrize(("columns", "grouped"), [(80, True), (130, False), (None, False)])
def test_the_table_fits_the_terminal(columns: int | None, grouped: bool) -> None:
    """Every size on every GPU; at 80 columns below headings of model, GPU and MTP."""
    servers = [Server(False), Server(True)]
    found = list(capacity_rows.rows(list(SIZES), list(CARDS.values()), servers, None, 2, None))
    lines = capacity_table.text(found, columns).splitlines()
    assert ("31b in bfloat16 on 80 GB, with MTP" in lines) is grouped
    assert max(map(len, lines)) <= (columns or 200)
    assert not any("|" in line for line in lines), "Markdown is for --markdown"
    (best,) = (line for line in lines if "17,907,020" in line)
    assert best.split()[-10:] == ["package", "0.904", "SGLang", "115.5", "17,907,020", "1,139,736", "48", "48", "48", "48"]
    assert sum("too few for weights" in line for line in lines) == sum(row.pools is None for row in found)


def test_the_table_in_markdown_has_as_many_cells_in_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["capacity", "31b", "--gpu", "80", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| model | weights | GPU | MTP | engine | fraction |")
    assert {line.count("|") for line in lines} == {lines[0].count("|")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["70b"], "unknown size '70b'"),
        (["e2b", "--tp", "3"], "--tp-size 3 does not divide"),
        (["--kv-bytes", "3"], "--kv-bytes 3"),
        (["--mem-fraction-static", "1.5"], "--mem-fraction-static 1.5 is not between 0 and 1"),
        (["--gpu", "abacus"], "--gpu abacus: neither a GPU (rtx4090, "),
        (["--gpu", "2"], "nor from 4 to 1024 GiB"),
        (["--chunked-prefill-size", "0"], "--chunked-prefill-size 0 is not a positive number"),
    ],
)
def test_what_the_command_refuses(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["capacity", *words]) == 2
    assert said in capsys.readouterr().err
