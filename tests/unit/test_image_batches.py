"""What tokens of images may see: masks of triton, ranges of fa4, chunks, and what is said where an image is cut all the same."""

import copy
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("sglang.srt.model_executor.forward_batch_info")
from sglang.kernels.ops.attention import flash_attention_v4
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_gemma4.attention import image_masks
from sglang_gemma4.patches.image_masks import mask_flash
from sglang_gemma4.serving import image_chunks
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


@pytest.mark.parametrize(("free", "ends_at"), [(40, 30), (14, 9), (9, 9), (5, 5)], ids=["chunk", "cut", "before", "no way"])
def test_free_memory_that_cuts_an_image_ends_the_chunk_before_it(free: int, ends_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang takes what memory allows of the chunk; 9 to 18 is an image, and so is 2 to 7, which nothing shorter gets past."""
    monkeypatch.setattr(image_chunks, "_two_way", True)
    req = SimpleNamespace(multimodal_inputs=inputs(SPANS[0]), full_untruncated_fill_ids=[0] * 30, prefix_len=2, extend_end=None)
    adder: Any = SimpleNamespace(rem_chunk_tokens=28, page_size=1, can_run_list=[])

    def stock(adder: Any, req: Any) -> Any:
        req.extend_end = min(req.prefix_len + adder.rem_chunk_tokens, max(free, 3), 30)
        adder.can_run_list.append(req)
        return req

    image_chunks.chunk_beside_images(stock, adder, req)
    assert req.extend_end == ends_at


def test_other_models_chunks_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_chunks, "_two_way", False)
    req = SimpleNamespace(multimodal_inputs=inputs(SPANS[0]))
    assert image_chunks.chunk_beside_images(lambda adder, req: "as it is", object(), req) == "as it is"
