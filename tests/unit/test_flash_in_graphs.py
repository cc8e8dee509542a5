"""When FlashAttention-4 computes prompts in graphs of joined forwards, what room it has, and what happens where it cannot be captured."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.attention import fixed_flash
from sglang_gemma4.attention.fixed_kinds import FixedKinds, Room
from sglang_gemma4.attention.flash_prefill import FlashPrefill, Kind
from sglang_gemma4.attention.image_masks import ImageAttention
from sglang_gemma4.attention.prefill import PrefillAttention
from sglang_gemma4.models.schedule import short_graphs, whole_graphs
from sglang_gemma4.patches import load
from sglang_gemma4.speculative import prompts

FULL = Kind(16, 2, 512, -1)
ROWS = 2048
ROOM = Room(running=4, each=4, prompts=3, keys=64, prefix_keys=100, window=8, verify=True)


def flash(least: int = 1024, kind: Kind = FULL) -> FlashPrefill:
    return FlashPrefill(print, {kind: least})


@pytest.mark.parametrize(
    ("given", "kinds", "prefix_keys", "said"),
    [
        (flash(), [FULL], fixed_flash.PREFIX_KEYS, None),
        (flash(ROWS), [FULL], 0, None),
        (None, [FULL], 0, "FlashAttention-4 takes no prefill here (flash_prefill)"),
        (flash(), [FULL, Kind(8, 1, 512, -1)], 0, "there are 2 kinds of layers without a window, not one"),
        (flash(), [], 0, "there are 0 kinds of layers without a window, not one"),
        (flash(kind=Kind(16, 8, 256, 1023)), [FULL], 0, "our kernel was measured to be as fast for layers of 16/2 heads of 512, no window"),
        (flash(4096), [FULL], 0, "FlashAttention-4 is faster from 4096 rows on, the largest graph has 2048"),
        (flash(), [FULL], 262_144, "the keys of 264192 rows in order would take more than 1 GiB"),
    ],
)
def test_servers_whose_graphs_have_our_kernel(given: FlashPrefill | None, kinds: list[Kind], prefix_keys: int, said: str | None) -> None:
    assert fixed_flash.reason_against(given, kinds, ROWS, prefix_keys, torch.bfloat16) == said


def test_the_buffers_of_26b_a4b() -> None:
    found = fixed_flash.FixedFlash(flash(), FULL, ROWS, 32, fixed_flash.PREFIX_KEYS, torch.bfloat16, torch.device("meta"))
    assert found.keys.shape == found.values.shape == (ROWS + 32_768, 2, 512)
    held = found.keys.nbytes + found.values.nbytes
    assert held == fixed_flash.buffer_bytes(FULL, ROWS, fixed_flash.PREFIX_KEYS, torch.bfloat16) == 136 << 20


def kinds(rows: int = ROWS) -> FixedKinds:
    """Of a model with a full and a sliding layer."""
    shape = {"tp_q_head_num": 4, "v_head_dim": 32, "qk_head_dim": 32}
    layers = [
        SimpleNamespace(**shape, tp_k_head_num=1, sliding_window_size=-1, layer_id=0),
        SimpleNamespace(**shape, tp_k_head_num=2, sliding_window_size=7, layer_id=1),
    ]
    backend = SimpleNamespace(device="cpu", token_to_kv_pool=SimpleNamespace(get_kv_buffer=lambda _: (torch.zeros(1),) * 2))
    return FixedKinds(backend, layers, rows, ROOM, SimpleNamespace(), torch.float32)


def part(requests: int, keys: int, rows: int) -> Any:
    """Prompts or running requests with that many cached keys."""
    slots = torch.zeros(keys, dtype=torch.int64)
    metadata = SimpleNamespace(kv_indices=slots, window_kv_indices=slots[:0])
    return SimpleNamespace(rows=rows, batch=SimpleNamespace(batch_size=requests), backend=SimpleNamespace(forward_metadata=metadata))


def test_graphs_of_enough_rows_have_it_and_bound_cached_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller ones have our kernel and all the room."""
    monkeypatch.setattr(fixed_flash, "PREFIX_KEYS", 60)
    found = kinds()
    assert found.take(None) == "FlashAttention-4 takes no prefill here (flash_prefill)"
    assert found.flashes(ROWS) is None
    assert found.take(flash(1024, Kind(4, 1, 32, -1))) is None
    assert [found.flashes(size) is not None for size in (512, 1024, ROWS)] == [False, True, True]
    assert found.flash is not None
    assert found.flash.keys.shape == (ROWS + 60, 1, 32)
    running = part(2, 10, 8)
    assert found.fits(part(2, 60, 1500), running, ROWS) is None
    assert found.fits(part(2, 61, 1500), running, ROWS) == "prompts have more than 60 cached keys, the room of FlashAttention-4 in a graph"
    assert found.fits(part(2, 61, 500), running, 512) is None
    assert found.fits(part(2, 101, 500), running, 512) == "more than 3 prompts, or 100 cached keys of theirs"
    assert found.fits(part(4, 0, 500), running, ROWS) == "more than 3 prompts, or 100 cached keys of theirs"


def test_all_that_fits_has_room_in_the_buffers() -> None:
    """Keys begin behind as many rows as running requests have."""
    found = kinds(64)
    assert found.take(flash(1, Kind(4, 1, 32, -1))) is None
    assert found.flash is not None
    assert found.flash.prefix_keys == ROOM.prefix_keys, "the server's bound, where it is less"
    found.starts.copy_(torch.tensor([16, 30, 64, 64]))
    found.prompts.full[0].copy_(torch.tensor([0, 1, 100, 100]))
    found.flash.fill(found.starts, found.prompts.full[0])
    assert found.flash.starts.tolist() == [16, 31, 164, 164]
    assert found.flash.starts.dtype == torch.int32
    assert int(found.flash.starts[-1]) <= found.flash.keys.shape[0]


def test_rows_of_nobody_hold_numbers() -> None:
    """One buffer for all layers, of the widest."""
    assert not kinds(64)._out.isnan().any()
    assert kinds(64)._out.numel() == 64 * 4 * 32


@pytest.mark.parametrize("images", [False, True])
def test_it_is_found_in_a_backend(images: bool) -> None:
    ours = PrefillAttention(print)
    backend = SimpleNamespace(extend_attention_fwd=ImageAttention(ours, "cpu") if images else ours)
    assert fixed_flash.flash_of(backend) is None
    ours.flash = flash()
    assert fixed_flash.flash_of(backend) is ours.flash
    assert fixed_flash.flash_of(SimpleNamespace(extend_attention_fwd=print)) is None
    assert fixed_flash.flash_of(SimpleNamespace()) is None


class Whole:
    """What ``capture`` asks of ``WholeGraphs``; a capture with FlashAttention-4 may fail."""

    sizes = (64, ROWS)

    def __init__(self, graphs: Any, _room: Any) -> None:
        self.graphs, self.kinds = graphs, kinds()
        self.captured: list[bool] = []
        self.dropped = 0

    def capture(self, _record: Any) -> None:
        self.captured.append(self.kinds.flash is not None)
        if self.graphs.fails and self.kinds.flash is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    def drop(self) -> None:
        self.dropped += 1


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    yield


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    for how in ("decline", "tell"):
        monkeypatch.setattr(whole_graphs, how, lambda name, message, how=how: said.append(f"{how} {name}: {message}"))
    monkeypatch.setattr(whole_graphs, "WholeGraphs", Whole)
    monkeypatch.setattr(whole_graphs, "room_of", lambda _: ROOM)
    monkeypatch.setattr(short_graphs, "capture_session", nothing)
    return said


def graphs(offered: bool, has: bool, fails: bool = False) -> Any:
    ours = PrefillAttention(print)
    ours.flash = flash(1024, Kind(4, 1, 32, -1)) if has else None
    runner = SimpleNamespace(attn_backend=SimpleNamespace(extend_attention_fwd=ours))
    found = SimpleNamespace(model_runner=runner, model_context=nothing, fails=fails)
    if offered:
        prompts.offer(found)
    return found


DECLINED = "decline flash_in_graphs: our kernel computes the prompts' full layers in graphs: "


@pytest.mark.parametrize(
    ("asked", "captured", "said"),
    [
        (graphs(False, True), [False], []),
        (graphs(True, False), [False], [DECLINED + "FlashAttention-4 takes no prefill here (flash_prefill)"]),
        (
            graphs(True, True, True),
            [True, False],
            [DECLINED + "RuntimeError: CUDA error: operation not permitted when stream is capturing"],
        ),
        (
            graphs(True, True),
            [True],
            [
                "tell flash_in_graphs: FlashAttention-4 computes the prompts' full layers in graphs of 2048 rows and more, behind up to "
                "100 cached keys; their buffers hold 1 MiB"
            ],
        ),
    ],
    ids=["off", "not-chosen", "not-captured", "captured"],
)
def test_what_is_captured_and_said(asked: Any, captured: list[bool], said: list[str], heard: list[str]) -> None:
    whole: Any = whole_graphs.capture(asked)
    assert whole.captured == captured
    assert whole.dropped == len(captured) - 1, "nothing of a capture that failed is left"
    assert (whole.kinds.flash is not None) is captured[-1], "nor its buffers"
    assert heard == said
    assert whole_graphs.of(asked) is whole


def test_long_prompts_stay_in_graphs_that_have_it() -> None:
    """20,000 cached keys and 1,500 new ones: 31 million scores; in a graph of 512 rows, or without it, such a prompt goes in pieces."""
    whole: Any = object.__new__(whole_graphs.WholeGraphs)
    whole.sizes, asked = (64, 512, ROWS), []

    def fits(_prompts: Any, _running: Any, size: int) -> None:
        asked.append(size)

    def problem(rows: int, prefix: int) -> str | None:
        batch = SimpleNamespace(extend_prefix_lens_cpu=[prefix], extend_seq_lens_cpu=[rows], contains_mm_inputs=lambda: False)
        found: str | None = whole.reason_against(SimpleNamespace(rows=rows, batch=batch), SimpleNamespace(rows=8))
        return found

    whole.kinds = SimpleNamespace(fits=fits, flashes=lambda size: flash() if size >= 1024 else None)
    assert problem(1500, 20_000) is None
    assert problem(400, 50_000) == "long prompts, for FlashAttention-4"
    assert problem(400, 5_000) is None
    assert asked == [ROWS, 512]
    whole.kinds.flashes = lambda size: None
    assert problem(1500, 20_000) == "long prompts, for FlashAttention-4"


def test_it_is_a_part_of_flash_prefill() -> None:
    patch = load(fixed_flash.NAME)
    assert patch.switch == load("flash_prefill").switch
