"""When the draft's head has an int8 copy, of which part of the head, and that it follows whatever changes the weights."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.kernels import kept_bytes
from sglang_gemma4.kernels.heads import head_argmax, narrow_head
from sglang_gemma4.kernels.heads.narrow_scan import NarrowHead
from sglang_gemma4.memory import capacity, model_bytes
from sglang_gemma4.models.layers import draft_head, narrow_copy, verify_head
from sglang_gemma4.speculative import acceptance_path, workers

TOKENS, WIDTH = 96, 32


class Model(torch.nn.Module):
    """An assistant, reduced to its head."""

    use_ordered_embeddings = False

    def __init__(self, processor: Any = None) -> None:
        super().__init__()
        self.lm_head = torch.nn.Linear(WIDTH, TOKENS + 4, bias=False)
        self.logits_processor = processor or SimpleNamespace(vocab_size=TOKENS, logit_scale=None, rl_on_policy_target=None)

    @property
    def copy(self) -> NarrowHead:
        found: NarrowHead = vars(self)[narrow_copy.COPY][0]
        return found


def draft_processor() -> Any:
    made: Any = object.__new__(draft_head.DraftHead)
    torch.nn.Module.__init__(made)
    made.vocab_size = TOKENS
    return made


def worker(model: Any, **given: Any) -> Any:
    settings = {
        "topk": 1,
        "speculative_num_steps": 3,
        "speculative_num_draft_tokens": 4,
        "parallel_layout": None,
        "disaggregation_mode": "null",
    }
    settings |= given
    return SimpleNamespace(
        draft_model_runner=SimpleNamespace(model=model),
        server_args=SimpleNamespace(disaggregation_mode=settings.pop("disaggregation_mode")),
        **settings,
    )


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from contextlib import nullcontext

    from sglang.srt.speculative import spec_utils

    monkeypatch.setattr(spec_utils, "draft_tp_context", lambda layout: nullcontext())
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("SGLANG_GEMMA4_SHARDED_HEAD", "0")
    heard: list[str] = []
    for name in ("decline", "idle", "tell"):
        monkeypatch.setattr(workers, name, lambda _patch, message, name=name: heard.append(f"{name}: {message}"))
    return heard


def same(copy: NarrowHead, weight: torch.Tensor) -> bool:
    fresh = NarrowHead.make(weight)
    return all(torch.equal(getattr(copy, name), getattr(fresh, name)) for name in ("levels", "scale", "error"))


def test_it_is_made_before_the_pools_and_given_after(said: list[str]) -> None:
    model = Model()
    workers.make_copy(None, worker(model))
    assert said == [f"tell: the int8 copy of the draft's head, {TOKENS + 4} tokens x {WIDTH}, takes 0.0 MiB of the card"]
    assert same(model.copy, model.lm_head.weight)
    assert not list(model.buffers()), "a release would copy it on the card"
    model.logits_processor = draft_processor()
    workers.give_copy(None, worker(model))
    assert model.logits_processor.narrow is model.copy
    assert len(said) == 1


def test_where_the_draft_got_no_head_of_ours_it_is_dropped(said: list[str]) -> None:
    model = Model()
    workers.make_copy(None, worker(model))
    workers.give_copy(None, worker(model))
    assert narrow_copy.COPY not in vars(model)
    assert said[1:] == ["decline: draft_argmax gave the draft no head of ours (see its own line)"]


@pytest.mark.parametrize(
    ("environ", "given", "message"),
    [
        ({"SGLANG_GEMMA4_WITHOUT": "draft_argmax"}, {}, "decline: draft_argmax is off, and the draft computes logits"),
        ({"SGLANG_GEMMA4_WITHOUT": "frozen_chain"}, {}, "decline: frozen_chain is off, and the draft computes logits"),
        ({}, {"topk": 4}, "decline: drafts are trees, which need logits"),
        ({}, {"disaggregation_mode": "prefill"}, "decline: a server that only prefills drafts nothing"),
        ({"SGLANG_ENABLE_NAN_LOGITS_CHECK": "1"}, {}, "decline: SGLang is asked to look for NaN in the draft's logits"),
        ({"TRITON_INTERPRET": "0"}, {}, "decline: Triton does not run on cpu"),
    ],
)
def test_why_there_is_none(
    environ: dict[str, str], given: dict[str, Any], message: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    model = Model()
    workers.make_copy(None, worker(model, **given))
    assert said == [message]
    workers.give_copy(None, worker(model, **given))
    assert narrow_copy.COPY not in vars(model)


def test_centroids_and_a_quantised_head_have_none(said: list[str]) -> None:
    model = Model()
    model.use_ordered_embeddings = True
    workers.make_copy(None, worker(model))
    other = Model()
    other.lm_head.quant_method = object()  # type: ignore[assignment]
    workers.make_copy(None, worker(other))
    assert [line.partition(":")[0] for line in said] == ["idle", "decline"]
    assert "not a plain weight" in said[1]


def test_a_rank_copies_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(world_size=4, rank_in_group=2)
    monkeypatch.setattr(draft_head, "get_parallel", lambda: SimpleNamespace(tp_group=group))
    model = Model()
    narrow_copy.make(model, sharded=True)
    assert same(model.copy, model.lm_head.weight[48:72])
    with torch.no_grad():
        model.lm_head.weight.mul_(-2).add_(1)
    narrow_copy.renew(model)
    assert same(model.copy, model.lm_head.weight[48:72])


def test_updates_reach_the_copy_in_place_also_those_that_fail() -> None:
    model = Model(draft_processor())
    narrow_copy.make(model, sharded=False)
    address = model.copy.levels.data_ptr()
    updater = SimpleNamespace(get_model=lambda: model)

    def update(_updater: Any, factor: float, fails: bool = False) -> tuple[bool, str]:
        model.lm_head.weight.data.mul_(factor).add_(1)
        if fails:
            raise RuntimeError("sizes differ")
        return True, "done"

    assert workers.renew_copy(update, updater, -3.0) == (True, "done")
    assert same(model.copy, model.lm_head.weight)
    with pytest.raises(RuntimeError, match="sizes differ"):
        workers.renew_copy(update, updater, -2.0, fails=True)
    assert same(model.copy, model.lm_head.weight)
    assert model.copy.levels.data_ptr() == address
    other = SimpleNamespace(get_model=lambda: torch.nn.Linear(2, 2))
    assert workers.renew_copy(lambda _updater: "the target's", other) == "the target's"


def test_an_update_copies_a_head_once_where_both_have_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed: list[Any] = []
    monkeypatch.setattr(narrow_copy, "renew", renewed.append)
    verify: Any = object.__new__(verify_head.VerifyHead)
    torch.nn.Module.__init__(verify)
    for model in (Model(draft_processor()), Model(verify)):
        updater = SimpleNamespace(get_model=lambda model=model: model)
        acceptance_path.renew_copy(partial(workers.renew_copy, lambda _updater: None), updater)
        assert renewed.pop() is model
        assert not renewed


def test_more_rows_than_it_takes_and_other_shapes_read_the_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(head_argmax, "head_argmax", lambda *_, **__: read.append("weight"))
    monkeypatch.setattr(narrow_head, "narrow_argmax", lambda *_, **__: read.append("copy"))
    weight = torch.zeros(TOKENS, WIDTH)
    heard: list[str] = []
    processor = SimpleNamespace(narrow=NarrowHead.make(weight), say_narrow=heard.append)
    for rows, head in ((32, weight), (33, weight), (40, weight), (1, weight[1:])):
        draft_head._largest(processor, torch.zeros(rows, WIDTH), head)
    draft_head._largest(SimpleNamespace(narrow=None), torch.zeros(1, WIDTH), weight)
    assert read == ["copy", "weight", "weight", "weight", "weight"]
    assert heard[:2] == ["more than 32 rows"] * 2
    assert "of a head (96, 32)" in heard[2]


@pytest.mark.parametrize(("size", "ranks", "tokens"), [("26b-a4b", 1, 262144), ("31b", 2, 262144), ("e2b", 1, 0)])
def test_capacity_counts_it_where_it_is_asked_for(size: str, ranks: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def left(mtp: bool, package: bool = True) -> float:
        needed = model_bytes.need(size, tp=ranks)
        return capacity.budget(needed, capacity.CARDS["141 GB"], capacity.Server(mtp, tp=ranks), 0.9, package=package)

    before = left(True), left(False), left(True, package=False)
    monkeypatch.setenv("SGLANG_GEMMA4_WITH", workers.NAME)
    after = left(True), left(False), left(True, package=False)
    assert [one - other for one, other in zip(before, after, strict=True)] == [
        tokens and kept_bytes.narrow_copy(tokens, 1024) / ranks,
        0,
        0,
    ]


def test_capacity_counts_the_target_s_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(mtp: bool) -> float:
        return capacity.budget(model_bytes.need("26b-a4b"), capacity.CARDS["141 GB"], capacity.Server(mtp), 0.9)

    before = left(True), left(False)
    monkeypatch.setenv("SGLANG_GEMMA4_WITH", acceptance_path.NAME)
    assert (left(True), left(False)) == before, "its switch is off"
    monkeypatch.setenv("SGLANG_GEMMA4_VERIFY_ARGMAX", "1")
    assert (before[0] - left(True), before[1] - left(False)) == (kept_bytes.narrow_copy(262144, 2816), 0)
