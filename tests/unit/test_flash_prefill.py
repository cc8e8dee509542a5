"""When a long prefill is not FlashAttention's, and what is said of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.kernels.ops.attention import flash_attention_v4

from sglang_gemma4.attention import flash_choice, flash_prefill, prefill
from sglang_gemma4.attention.quantised import ReadsLevels
from sglang_gemma4.kernels.attention.prefill_attention import prefill_attention
from sglang_gemma4.models import attention_backends
from sglang_gemma4.patching.switches import CACHE_DIR
from sglang_gemma4.start import folder

States = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def states(dim: int = 256, dtype: torch.dtype = torch.bfloat16, tokens: int = 4, v_dim: int | None = None) -> States:
    return (
        torch.zeros(tokens, 4, dim, dtype=dtype, device="meta"),
        torch.zeros(tokens, 2, dim, dtype=dtype, device="meta"),
        torch.zeros(tokens, 2, v_dim or dim, dtype=dtype, device="meta"),
    )


@pytest.mark.parametrize(
    ("given", "cached", "said"),
    [
        (states(), 10, None),
        (states(512, torch.float16), 0, None),
        (states(dtype=torch.float32), 0, "q is torch.float32"),
        (states(128), 0, "head dimensions are 128 and 128; 256 or 512 for both is supported"),
        (states(v_dim=512), 0, "head dimensions are 256 and 512"),
        (states(512), 300_000, "a batch's keys in order would take more than 1 GiB"),
        (states(512, tokens=300_004), 0, None),  # nothing is put in order where nothing is cached
    ],
)
def test_layers_that_are_not_taken(given: States, cached: int, said: str | None) -> None:
    found = flash_prefill.FlashPrefill(lambda *_, **__: None).reason_against(*given, torch.zeros(cached, device="meta"))
    assert (found is None) if said is None else str(found).startswith(said)


@pytest.mark.parametrize(
    ("card", "imported", "said"),
    [
        (None, True, "there is no CUDA GPU"),
        ((10, 0), True, "the GPU's compute capability is 10.0; 9.x is supported"),
        ((9, 0), False, "FlashAttention-4 cannot be imported: no cutlass"),
        ((9, 0), True, None),
    ],
)
def test_processes_that_cannot(card: tuple[int, int] | None, imported: bool, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: card is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: card)
    monkeypatch.setattr(flash_attention_v4, "_flash_attn_varlen_func", print if imported else None)
    monkeypatch.setattr(flash_attention_v4, "_flash_attn_import_error", "no cutlass")
    assert flash_prefill.reason_against() == said


class Runner(SimpleNamespace):
    """What the patch asks a model runner for."""

    def __init__(self, architecture: str = "Gemma4ForConditionalGeneration", draft: bool = False) -> None:
        super().__init__(
            is_draft_worker=draft,
            model_config=SimpleNamespace(hf_config=SimpleNamespace(architectures=[architecture])),
            model=torch.nn.Module(),
            dtype=torch.bfloat16,
        )


@pytest.mark.parametrize(
    ("runner", "ours", "possible", "said"),
    [
        (Runner(), True, "there is no CUDA GPU", "there is no CUDA GPU"),
        (Runner(), False, None, "prefill_attention is off"),
        (Runner(draft=True), True, None, None),
        (Runner("LlamaForCausalLM"), True, None, None),
        (Runner(), True, None, "taken"),
    ],
)
def test_backends_that_get_it(runner: Any, ours: bool, possible: str | None, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    for told in ("note", "decline"):
        monkeypatch.setattr(attention_backends, told, lambda name, message: heard.append(message))
    monkeypatch.setattr(flash_prefill, "reason_against", lambda: possible)
    monkeypatch.setattr(flash_prefill, "unused_by", lambda *asking: None)
    taken = flash_prefill.FlashPrefill(print)
    choice = flash_choice.Choice(taken, taken=["a kind"], left=["any kind: slower"])
    monkeypatch.setattr(flash_choice, "chosen", lambda attend, *_: choice if attend is flash_attention_v4.flash_attn_varlen_func else None)
    backend = SimpleNamespace(extend_attention_fwd=prefill.PrefillAttention(print) if ours else print, device="cpu")
    attention_backends.prefill_by_flash(backend, runner)
    flash: Any = getattr(backend.extend_attention_fwd, "flash", None)
    if said == "taken":
        assert flash is taken
        assert heard == ["our kernel prefills layers of any kind: slower"]
    else:
        assert flash is None
        assert [str(said) in each for each in heard] == ([True] if said else [])


@pytest.mark.parametrize(
    ("mode", "deterministic", "cache", "said"),
    [
        ("null", False, torch.bfloat16, None),
        ("prefill", False, torch.bfloat16, None),
        ("decode", False, torch.bfloat16, "another server prefills"),
        ("null", True, torch.bfloat16, "--enable-deterministic-inference"),
        ("null", False, torch.float8_e4m3fn, "the KV cache is torch.float8_e4m3fn, the model torch.bfloat16"),
        ("null", False, torch.int8, "over a quantised KV cache it was on no GPU yet"),
        ("null", False, torch.uint8, None),  # levels that this package's backend reads, and the switch is set
    ],
)
def test_servers_that_would_never_use_it(
    mode: str, deterministic: bool, cache: torch.dtype, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is compiled or measured for them."""
    heard: list[str] = []
    execution = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=deterministic))
    monkeypatch.setattr("sglang.srt.runtime_context.get_disagg", lambda: SimpleNamespace(disaggregation_mode=mode))
    monkeypatch.setattr("sglang.srt.runtime_context.get_exec", lambda: execution)
    for told in ("note", "decline"):
        monkeypatch.setattr(attention_backends, told, lambda name, message: heard.append(message))
    monkeypatch.setattr(flash_prefill, "reason_against", lambda: None)
    asked: list[Any] = []

    def chosen(*given: Any) -> flash_choice.Choice:
        asked.append(given)
        return flash_choice.Choice(flash_prefill.FlashPrefill(print), taken=["a kind"])

    monkeypatch.setattr(flash_choice, "chosen", chosen)
    runner = Runner()
    runner.kv_cache_dtype = cache
    monkeypatch.delenv(flash_prefill.SWITCH, raising=False)
    if cache == torch.uint8:
        monkeypatch.setenv(flash_prefill.SWITCH, "1")
    backend: Any = type("Backend", (ReadsLevels,), {})() if cache in (torch.int8, torch.uint8) else SimpleNamespace()
    backend.extend_attention_fwd, backend.device = prefill.PrefillAttention(print), "cpu"
    attention_backends.prefill_by_flash(backend, runner)
    assert len(asked) == (said is None)
    assert [str(said) in each for each in heard] == ([True] if said else [])


@pytest.mark.parametrize(("tokens", "images", "flashed"), [(1024, False, 1), (1023, False, 0), (1024, True, 0)])
def test_short_prefills_and_images_stay_ours(tokens: int, images: bool, flashed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel: list[Any] = []
    monkeypatch.setattr(prefill, "prefill_attention", lambda *args, **kwargs: kernel.append(kwargs["reach"]))
    attention = prefill.PrefillAttention(print)
    taken: list[int] = []
    least = {flash_prefill.Kind(4, 2, 256, -1): 1024}
    attention.flash = flash_prefill.FlashPrefill(lambda q, *_, **__: taken.append(q.shape[0]), least)
    q, k, v = (torch.zeros(tokens, heads, 256, dtype=torch.bfloat16) for heads in (4, 2, 2))
    starts, none = torch.tensor([0, tokens]), torch.zeros(2, dtype=torch.int32)
    reach = torch.zeros(tokens, dtype=torch.int32) if images else None
    assert attention.attend((q, k, v, torch.empty_like(q), k, v, starts, none, none[:0]), tokens, 1.0, -1, reach) is None
    assert len(taken) == flashed
    assert len(kernel) == 1 - flashed


KINDS = frozenset({flash_prefill.Kind(4, 2, 256, 63), flash_prefill.Kind(4, 1, 512, -1)})


class Card:
    """The chooser's view of a card: both kernels by torch, times by a table, every call of FlashAttention-4 counted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.called: list[tuple[int, int]] = []
        self.timed: list[int] = []
        self.theirs = {256: 1.0, 512: 3.0}
        monkeypatch.setenv(CACHE_DIR, str(folder))
        monkeypatch.setattr(flash_choice, "card_name", lambda device: "NVIDIA H200")
        monkeypatch.setattr(flash_choice, "greatest_difference", self.compare)
        monkeypatch.setattr(flash_choice, "milliseconds", self.time)

    def attend(self, q: torch.Tensor, *_args: Any, **_kwargs: Any) -> None:
        self.called.append((q.shape[0], q.shape[2]))

    def compare(self, flash: flash_prefill.FlashPrefill, kind: flash_prefill.Kind, *_: Any) -> float:
        self.called.append((0, kind.dim))
        return 0.5

    def time(self, call: Any) -> float:
        dim = call.keywords["q"].shape[2]
        self.timed.append(dim)
        return self.theirs[dim] if call.func is not prefill_attention else 2.0

    def start(self) -> flash_choice.Choice:
        flash_choice.chosen.cache_clear()
        self.called.clear()
        self.timed.clear()
        return flash_choice.chosen(self.attend, KINDS, torch.bfloat16, "cpu")


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Card:
    monkeypatch.setattr(flash_choice, "SIZES", (128, 256))
    monkeypatch.setattr(flash_choice, "SHORT", 128)
    return Card(tmp_path, monkeypatch)


def test_a_second_start_chooses_by_the_first_one_s_times(card: Card) -> None:
    first = card.start()
    assert (first.remembered, len(card.timed)) == (0, 2 * 3 * 2), "two kinds, three shapes, two kernels"
    second = card.start()
    assert (second.remembered, card.timed) == (2, [])
    assert (second.flash.least, second.taken, second.left) == (first.flash.least, first.taken, first.left)
    assert card.called == [(0, 256), (128, 256), (256, 256), (256, 256)], "what is taken, in every shape, and no more"
    assert first.took.startswith("compiled and measured in")
    assert second.took.endswith(", times of an earlier start")


@pytest.mark.parametrize("what", ["empty", "card", "version", "broken", "shape"])
def test_times_that_are_measured_anew(what: str, card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card.start()
    (path,) = tmp_path.rglob("*.json")
    if what == "empty":
        monkeypatch.setenv(CACHE_DIR, "")
    elif what == "card":
        monkeypatch.setattr(flash_choice, "card_name", lambda device: "NVIDIA H100")
    elif what == "version":
        monkeypatch.setattr(folder, "versions", lambda: {"triton": "another"})
    elif what == "broken":
        path.write_text(path.read_text()[:-20])
    else:
        path.write_text(path.read_text().replace("2.0", '"soon"'))
    card.theirs = {256: 3.0, 512: 1.0}
    again = card.start()
    assert again.remembered == 0
    assert [kind.dim for kind in again.flash.least] == [512]


def test_a_kept_choice_that_answers_otherwise_is_not_taken(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    card.start()
    monkeypatch.setattr(flash_choice, "greatest_difference", lambda *_: float("nan"))
    again = card.start()
    assert again.taken == []
    assert any("its output differs" in left for left in again.left)
