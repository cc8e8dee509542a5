"""What tokens of images may see: masks of triton, ranges of fa4, chunks, and what is said where an image is cut all the same."""

import copy
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("sglang.srt.model_executor.forward_batch_info")
from sglang.kernels.ops.attention import flash_attention_v4
from sglang.srt.managers.schedule_policy import AddReqResult, _PrefillAdmission
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_gemma4.attention import image_masks
from sglang_gemma4.serving import image_chunks
from sglang_gemma4.serving.media.bidirectional_images import mask_flash
from tests.unit.test_frozen_views import flash

__all__ = ["flash"]

WINDOW = 6  # greatest distance of a key behind a query
SPANS: list[list[tuple[int, int]]] = [[(2, 5), (6, 7), (9, 18)], [], [(0, 3)], [(4, 6)]]
PREFIXES, ENDS = [4, 0, 0, 9], [20, 3, 4, 10]
"""The first request's first image began before its new tokens; the last row decodes."""


def inputs(spans: list[tuple[int, int]]) -> Any:
    item = SimpleNamespace(is_image=lambda: True, is_video=lambda: False, offsets=spans)
    return SimpleNamespace(mm_items=[item]) if spans else None


def batch(mode: ForwardMode = ForwardMode.MIXED, ends: list[int] = ENDS) -> Any:
    return SimpleNamespace(
        forward_mode=mode,
        mm_inputs=[inputs(spans) for spans in SPANS],
        extend_prefix_lens_cpu=PREFIXES,
        extend_seq_lens_cpu=[end - prefix for prefix, end in zip(PREFIXES, ends, strict=True)],
        seq_lens=torch.tensor(ends),
    )


def seen(query: int, key: int, spans: list[tuple[int, int]]) -> bool:
    """transformers' rule for sliding layers: within the window behind, and causal or of one run of image tokens."""
    joined = (
        [set(range(2, 8)), *(set(range(a, b + 1)) for a, b in spans if a > 7)]
        if len(spans) > 1
        else [set(range(a, b + 1)) for a, b in spans]
    )
    return key >= query - WINDOW and (key <= query or any(query in run and key in run for run in joined))


def test_the_mask_is_transformers_rule() -> None:
    described = image_masks.describe(batch(), "cpu")
    assert described is not None
    mask, starts = described.mask(WINDOW)
    for number, (prefix, end, spans) in enumerate(zip(PREFIXES, ENDS, SPANS, strict=True)):
        before = min(prefix, WINDOW)
        own = mask[starts[number] : starts[number + 1]].view(end - prefix, before + end - prefix)
        expected = [[seen(query, key, spans) for key in range(prefix - before, end)] for query in range(prefix, end)]
        assert own.tolist() == expected, number
    assert described.mask(WINDOW)[0] is mask, "made once for a batch"


@pytest.mark.parametrize("mode", [ForwardMode.DECODE, ForwardMode.TARGET_VERIFY, ForwardMode.IDLE])
def test_other_batches_are_not_described(mode: ForwardMode) -> None:
    assert image_masks.describe(batch(mode), "cpu") is None
    assert image_masks.token_ranges(batch(mode)) is None


def test_fa4_s_ranges_are_absolute_and_joined() -> None:
    ranges = image_masks.token_ranges(batch())
    assert ranges is not None
    text = [-1, -1]
    first = [[2, 7]] * 4 + [text] + [[9, 18]] * 10 + [text]
    assert ranges.tolist() == [*first, text, text, text, *[[0, 3]] * 4, text]


VIDEO = [(2, 5), (8, 18)]
"""Two frames of one video, in the request that began before."""


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.MIXED])
def test_fa4_s_sliding_layers_see_a_video_s_frames_both_ways(mode: ForwardMode, flash: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's backend and metadata, its kernel replaced. Stock tells it of no batch without an image, and of none that decodes too."""
    monkeypatch.setattr(flash_attention_v4, "make_image_mask_mod", lambda window: window, raising=False)
    config = SimpleNamespace(architectures=["Gemma4ForConditionalGeneration"], use_bidirectional_attention="vision")
    target = SimpleNamespace(model_config=SimpleNamespace(hf_config=config), is_draft_worker=False)
    given: list[Any] = []

    def kernel(q: Any, causal: bool, aux_tensors: Any = None, **_: Any) -> Any:
        assert causal is (aux_tensors is None)
        given.append(aux_tensors and aux_tensors[0].tolist())
        return q

    backend = copy.copy(flash.backend)
    backend.get_paged_mha_kv_cache = lambda layer: (torch.zeros(1), torch.zeros(1))
    monkeypatch.setattr(sys.modules[type(backend).__module__], "flash_attn_with_kvcache", kernel, raising=False)
    mask_flash(SimpleNamespace(prefill_backend=backend), model_runner=target)
    video = SimpleNamespace(is_image=lambda: False, is_video=lambda: True, offsets=VIDEO)
    new = SimpleNamespace(
        forward_mode=mode, batch_size=2, seq_lens=torch.tensor([20, 10]), seq_lens_cpu=torch.tensor([20, 10]), encoder_lens=None,
        extend_seq_lens=torch.tensor([16, 1]), extend_seq_lens_cpu=[16, 1], extend_prefix_lens_cpu=[4, 9], spec_info=None,
        mm_inputs=[SimpleNamespace(mm_items=[video]), None], req_pool_indices=torch.tensor([0, 0]), kv_loc_plan=None, _attn_output=None,
        attn_cp_metadata=None, out_cache_loc=None,
    )  # fmt: skip
    backend.init_forward_metadata(new)
    for window in (WINDOW, -1):
        layer = SimpleNamespace(
            layer_id=0, sliding_window_size=window, attn_type=None, is_cross_attention=False, k_scale=None, v_scale=None, tp_q_head_num=1,
            tp_k_head_num=1, tp_v_head_num=1, head_dim=8, v_head_dim=8, qk_head_dim=8, scaling=1.0, logit_cap=0.0,
        )  # fmt: skip
        backend.forward_extend(torch.zeros(17, 8), None, None, layer, new, save_kv_cache=False)
    text = [-1, -1]
    assert given == [[*[[2, 5]] * 2, *[text] * 2, *[[8, 18]] * 11, text, text], None]
    backend.init_forward_metadata(SimpleNamespace(**{**vars(new), "mm_inputs": [None, None]}))
    assert backend.forward_metadata.image_token_ranges is None, "a batch's images are not the next one's"


@pytest.mark.parametrize(("causal", "draft"), [(True, False), (False, True)], ids=["model", "draft"])
def test_fa4_is_left_alone_where_images_are_causal(causal: bool, draft: bool) -> None:
    config = SimpleNamespace(architectures=["Gemma4ForConditionalGeneration"], use_bidirectional_attention=None if causal else "vision")
    backend = SimpleNamespace(fa_impl_ver=4)
    mask_flash(backend, model_runner=SimpleNamespace(model_config=SimpleNamespace(hf_config=config), is_draft_worker=draft))
    assert vars(backend) == {"fa_impl_ver": 4}


def test_an_image_that_is_cut_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(image_masks, "note", lambda name, message: said.append(f"{name}: {message}"))
    image_masks.describe(batch(ForwardMode.EXTEND), "cpu")
    assert said == []
    image_masks.describe(batch(ForwardMode.EXTEND, [15, 3, 4, 10]), "cpu")
    (line,) = said
    assert line.startswith("image_masks: a prefill chunk ends inside an image")


class Adder(SimpleNamespace):
    """What the hooks ask of SGLang's ``PrefillAdder``, and its rule: a chunk as long as its budget and free memory."""

    def __init__(self, budget: int, free: int, limit: int | None = None) -> None:
        memory = SimpleNamespace(
            available_chunk_tokens=lambda asked: min(asked, free) or None, fit_chunk=lambda **given: given["chunk_limit"]
        )
        super().__init__(
            rem_chunk_tokens=budget, chunked_req_limit=limit, page_size=1, memory_budget=memory, free=free, new_chunked_req=None
        )

    def _swa_new_tokens(self, req: Any) -> int:
        return 0


def request(prefix: int) -> Any:
    return SimpleNamespace(multimodal_inputs=inputs(SPANS[0]), full_untruncated_fill_ids=[0] * 30, prefix_len=prefix, extend_end=prefix)


def stock_chunk(adder: Any, req: Any) -> Any:
    limit = adder.rem_chunk_tokens if adder.chunked_req_limit is None else min(adder.rem_chunk_tokens, adder.chunked_req_limit)
    taken = min(limit, adder.free, 30 - req.prefix_len)
    req.extend_end = req.prefix_len + taken
    adder.rem_chunk_tokens -= taken
    return req if req.extend_end < 30 else None


@pytest.fixture
def two_way(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, str]]:
    """Images attend both ways; the list of requests that wait."""
    waiting: list[tuple[Any, str]] = []
    monkeypatch.setattr(image_chunks, "_two_way", True)
    monkeypatch.setattr(image_chunks, "_waiting", waiting)
    return waiting


@pytest.mark.parametrize(
    ("prefix", "budget", "limit", "free", "ends_at"),
    [
        (8, 28, None, 40, 30),
        (8, 6, None, 40, 9),
        (9, 4, None, 40, 19),
        (9, 28, 4, 40, 19),
        (8, 28, None, 6, 9),
        (9, 28, None, 10, 19),
        (9, 28, None, 9, None),
        (9, 28, None, 0, None),
    ],
    ids=["rest", "before", "longer than a chunk", "longer than a share", "memory before", "memory just", "memory cuts", "no memory"],
)
def test_a_later_chunk_ends_beside_images_or_waits(
    prefix: int, budget: int, limit: int | None, free: int, ends_at: int | None, two_way: list[Any]
) -> None:
    """9 to 18 is an image, and so is 2 to 7."""
    req, adder = request(prefix), Adder(budget, free, limit)
    left = image_chunks.continue_beside_images(stock_chunk, adder, req)
    if ends_at is None:
        assert left is req
        assert req.extend_end == prefix, "nothing is taken, which SGLang knows by this"
        ((waiting, why),) = two_way
        assert waiting is req
        assert f"takes 10 tokens, which are prefilled together, and the KV pools have room for {free}" in why
        assert image_chunks.admit_beside_images(lambda *_: "admitted", adder, request(0)) is AddReqResult.NO_TOKEN
    else:
        assert (req.extend_end, left) == (ends_at, None if ends_at == 30 else req)
        assert not two_way
        assert adder.rem_chunk_tokens == (max(0, budget - (30 - prefix)) if left is None else 0)


@pytest.mark.parametrize(
    ("found_on_host", "budget", "free", "takes"),
    [(8, 20, 40, 20), (8, 28, 6, 1), (9, 4, 40, 10), (9, 28, 9, None)],
    ids=["as it is", "memory before", "longer than a chunk", "memory cuts"],
)
def test_a_first_chunk_behind_a_prefix_on_the_host(
    found_on_host: int, budget: int, free: int, takes: int | None, two_way: list[Any]
) -> None:
    """SGLang says there how long a first chunk is; 9 to 18 is an image."""
    adder = Adder(budget, free)

    def select(adder: Any, req: Any, **_: Any) -> Any:
        return _PrefillAdmission(found_on_host, min(adder.rem_chunk_tokens, adder.free), 0, True, 0)

    found = image_chunks.fit_beside_images(select, adder, request(0))
    assert adder.rem_chunk_tokens == budget
    assert found is AddReqResult.NO_TOKEN if takes is None else found.extend_len == takes
    assert len(two_way) == (takes is None)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize(("others", "moving", "refused"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_what_waits_for_nobody_is_refused(chunked: bool, others: int, moving: int, refused: bool, two_way: list[Any]) -> None:
    """Decoding requests hold memory, and so do those that a prefill server is still sending."""
    said: list[str] = []
    req = SimpleNamespace(discard_output_reason=None, set_finish_with_abort=said.append)
    done = SimpleNamespace(finished=lambda: True)
    running = [req, done, *(SimpleNamespace(finished=lambda: False) for _ in range(others))]
    scheduler: Any = SimpleNamespace(
        chunked_req=req if chunked else None, collect_inflight_reqs=lambda: running, disagg_prefill_inflight_queue=[done] * moving
    )

    def one_pass(scheduler: Any) -> Any:
        image_chunks._wait(req, 10, 9)
        return None, "running"

    assert image_chunks.refuse_what_never_fits(one_pass, scheduler) == (None, "running")
    if chunked and refused:
        assert req.discard_output_reason.status_code == 400
        said.append(req.discard_output_reason.message)
        assert scheduler._pending_chunked_abort_req is req
    assert len(said) == refused
    image_chunks.refuse_what_never_fits(lambda _: (None, "running"), scheduler)
    assert two_way == [], "asked again in each pass"


def test_other_models_chunks_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_chunks, "_two_way", False)
    for hook in (image_chunks.admit_beside_images, image_chunks.continue_beside_images, image_chunks.fit_beside_images):
        assert hook(lambda adder, req: "as it is", Adder(28, 40), request(0)) == "as it is"
