"""Budgets of soft tokens: what a request or a server may ask for, and that placeholders and features follow it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.utils import ImageData

from sglang_gemma4.serving import http_errors
from sglang_gemma4.serving.media import image_budget, served
from tests.harness.child import run_in_child
from tests.unit import test_image_files as files

SIZES = ((64, 64), (200, 60), (37, 150), (1, 1))


def request(kwargs: Any = None, **fields: Any) -> GenerateReqInput:
    return GenerateReqInput(text="a", mm_processor_kwargs=kwargs, **fields)


@pytest.mark.parametrize(
    ("kwargs", "budget"),
    [
        (None, None),
        ({}, None),
        ({"images_kwargs": {}}, None),
        *(({"max_soft_tokens": budget}, budget) for budget in image_budget.BUDGETS),
        ({"images_kwargs": {"max_soft_tokens": 560}}, 560),
        ({"max_soft_tokens": 70, "images_kwargs": {"max_soft_tokens": 70}}, 70),
    ],
)
def test_what_a_request_may_ask_for(kwargs: Any, budget: int | None) -> None:
    assert image_budget.of_request(request(kwargs)) == budget
    assert image_budget.of_request(None) is None


def test_an_image_beside_other_media_is_scaled() -> None:
    """A conversation's client may send its setting with each turn, also with those of text alone."""
    for data in ("x", ["x"], [None, ["x"]], [{"url": "x"}], [ImageData(url="x")], [{"format": "processor_output"}, "x"]):
        assert image_budget.of_request(request({"max_soft_tokens": 70}, image_data=data, video_data=["y"])) == 70
    assert image_budget.of_request(request({"max_soft_tokens": 70})) == 70
    assert image_budget.of_request(request(image_data=["x"], mm_hashes=["ff"])) is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (request({"max_soft_tokens": 100}), "max_soft_tokens: 100 is none of 70, 140, 280, 560, 1120"),
        (request({"max_soft_tokens": "280"}), "'280' is none of"),
        (request({"max_soft_tokens": True}), "True is none of"),
        (request({"max_soft_tokens": None}), "None is none of"),
        (request({"max_soft_tokens": [70]}), r"\[70\] is none of"),
        (request({"do_resize": False}), "do_resize: a request may set max_soft_tokens alone"),
        (request({"videos_kwargs": {"max_soft_tokens": 70}}), "videos_kwargs: a request may set"),
        (request({"images_kwargs": {"patch_size": 8}}), "images_kwargs.patch_size: a request may set"),
        (request({"images_kwargs": [1]}), r"images_kwargs: \[1\] is no object"),
        (request({"max_soft_tokens": 70, "images_kwargs": {"max_soft_tokens": 280}}), "70 and 280; send one"),
        (request(images_config={"image_mode": "base"}), "images_config: Gemma 4's images have no such setting"),
        (request(image_max_dynamic_patch=4), "image_max_dynamic_patch"),
        (request(image_data=[ImageData(url="x", max_long_side_pixel=512)]), "image_url.max_long_side_pixel"),
        (request("x"), "mm_processor_kwargs: 'x' is no object"),
        (request([1]), r"mm_processor_kwargs: \[1\] is no object"),
        (request(""), "'' is no object"),
        (request({"max_soft_tokens": 70}, video_data=["x"]), "sets images' size; this request has video, and no image to scale"),
        (request({"max_soft_tokens": 70}, image_data=[[]], audio_data="x"), "this request has audio, and no image"),
        (request({"max_soft_tokens": 70}, image_data=[{"format": "processor_output"}]), "this request has image, and no image to scale"),
        (
            request({"max_soft_tokens": 70}, image_data=["x"], mm_hashes=["ff"]),
            "mm_hashes name cache entries of an image whatever its size",
        ),
    ],
)
def test_what_it_may_not(asked: GenerateReqInput, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        image_budget.of_request(asked)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, None),
        ({"image": {"max_soft_tokens": 1120}, "video": {"max_soft_tokens": 140}}, None),
        ({"image": {"do_convert_rgb": True}, "audio": {"anything": 1}}, None),
        ({"image": {"max_soft_tokens": 1000}}, "image.max_soft_tokens: 1000 is none of"),
        ({"video": {"max_soft_tokens": 71}}, "video.max_soft_tokens: 71 is none of"),
        ({"image": {"max_pixels": 1000}}, "image.max_pixels is not read by Gemma 4"),
        ({"image": {"patch_size": 8}}, "image.patch_size"),
        ({"image": 5}, "image: 5 is no object"),
    ],
)
def test_what_a_server_may(config: Any, said: str | None) -> None:
    reason = image_budget.reason_against(config)
    assert reason is None if said is None else said in str(reason)


def test_a_server_of_another_model_may_say_what_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.arg_groups import model_override_base

    from sglang_gemma4.diagnostics import start_checks
    from sglang_gemma4.models.config_files import PreflightError

    def start(architecture: str, image: Any) -> None:
        config = SimpleNamespace(hf_config=SimpleNamespace(architectures=[architecture]))
        monkeypatch.setattr(model_override_base, "model_config_of", lambda _: config)
        monkeypatch.setattr(model_override_base, "resolved_view", lambda _: SimpleNamespace(mm_process_config={"image": image}))
        start_checks.check_media(None, None)

    for odd in (5, {1: 2, "size": 3}, {"size": 3}):
        start("Qwen2_5_VLForConditionalGeneration", odd)
    for wrong in (5, {"size": 3}):
        with pytest.raises(PreflightError, match="--mm-process-config: image"):
            start("Gemma4ForConditionalGeneration", wrong)


BODY = {"mm_processor_kwargs": {"max_soft_tokens": 560}}
DROPPING = ("/v1/messages", "/v1/responses", "/v1/embeddings", "/encode", "/api/chat", "/api/generate", "/vertex_generate")


def test_endpoints_without_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "is_gemma4", lambda: True)
    assert all("has no such field" in str(image_budget.dropped_by(path, BODY)) for path in DROPPING)
    for path in ("/v1/chat/completions", "/v1/completions", "/generate", "/invocations", "/tokenize", "/v1/tokenize", "/v1/score"):
        assert image_budget.dropped_by(path, BODY) is None
    assert image_budget.dropped_by("/v1/responses", {}) is None
    assert image_budget.dropped_by("/v1/responses", [BODY]) is None
    assert http_errors._route({"path": "/api/generate", "root_path": "/api"}) == "/generate"
    assert http_errors._route({"path": "/api/generate", "root_path": ""}) == "/api/generate"


def test_endpoints_of_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "is_gemma4", lambda: False)
    assert [image_budget.dropped_by(path, BODY) for path in DROPPING] == [None] * len(DROPPING)


@pytest.fixture(scope="module")
def seen() -> Any:
    """What one forked process finds."""

    def child() -> dict[str, Any]:
        files.place_patches()
        before = marked_by_now()
        pictures, made = [Image.new("RGB", size, "red") for size in SIZES[:3]], files.reference()
        data = [files.file("RGB", "PNG", 1)] * 2
        found: dict[str, Any] = {}
        for server in (None, 560):
            served = files.processor(**({"max_soft_tokens": server} if server else {}))
            for asked in (None, *image_budget.BUDGETS):
                budget = asked or server or 70
                fields = {"mm_processor_kwargs": {"max_soft_tokens": asked}} if asked else {}
                wrong = files.differences(files.ours(served, data, **fields), files.theirs(made, data, budget), 0.0)
                ids = files.ours(served, pictures, [2, 4, 300, 4, 302, 4, 301], **fields)
                wrong += [] if ids.input_ids == by_ids(served, budget) else ["a prompt of ids"]
                if wrong:
                    found[f"{asked} of a server of {server}"] = wrong
        found["no token"] = refused(served)
        found["all at once"] = together(served)
        return found | {"marked": [before, marked_by_now()]}

    return run_in_child(child)


def marked_by_now() -> bool:
    return served.is_gemma4()


def by_ids(served: Any, budget: int) -> list[int]:
    """[2, 4, 300, 4, 302, 4, 301] with each 4 as many times as transformers says, whose helper keeps what it is told."""
    from transformers.models.gemma4.processing_gemma4 import Gemma4ProcessorKwargs

    sizes = [(height, width) for width, height in SIZES[:3]]
    before = dict(Gemma4ProcessorKwargs._defaults["images_kwargs"])
    first, second, third = served._processor._get_num_multimodal_tokens(sizes, max_soft_tokens=budget).num_image_tokens
    Gemma4ProcessorKwargs._defaults["images_kwargs"] = before
    return [2, *[4] * first, 300, *[4] * second, 302, *[4] * third, 301]


def refused(served: Any) -> str:
    """What is said of images that a prompt cannot hold."""
    text = "<bos>" + "<|image|> and " * 2
    asked = GenerateReqInput(text=text, image_data=[drawn := Image.new("RGB", (64, 64))] * 2, mm_processor_kwargs={"max_soft_tokens": 1120})
    try:
        asyncio.run(served.process_mm_data_async(image_data=[drawn] * 2, input_text=text, request_obj=asked, max_req_input_len=1000))
    except ValueError as error:
        return str(error)
    return "served"


def together(served: Any) -> list[int]:
    """Soft tokens of one image in requests of all budgets at once: none takes another one's."""

    async def ask(budget: int) -> int:
        text, image = "<bos><|image|> and", Image.new("RGB", (300, 300), "red")
        asked = GenerateReqInput(text=text, image_data=[image], mm_processor_kwargs={"max_soft_tokens": budget})
        made = await served.process_mm_data_async(image_data=[image], input_text=text, request_obj=asked, max_req_input_len=10**6)
        return int(made.input_ids.count(4))

    async def all_of_them() -> list[int]:
        return list(await asyncio.gather(*(ask(budget) for budget in image_budget.BUDGETS * 3)))

    return asyncio.run(all_of_them())


def test_placeholders_and_features_follow_the_budget(seen: Any) -> None:
    """A request's overrides the server's, and ids that a client sends are kept."""
    assert {name: wrong for name, wrong in seen.items() if " of a server of " in name} == {}


def test_making_a_processor_marks_its_process(seen: Any) -> None:
    assert seen["marked"] == [False, True]


def test_what_does_not_fit_is_said_with_its_budget(seen: Any) -> None:
    assert "2 images make 2178 tokens, of at most 1120 each, and a prompt may have 1000" in seen["no token"]


def test_requests_at_once_keep_their_budgets(seen: Any) -> None:
    assert seen["all at once"] == [64, 121, 256, 529, 1089] * 3


def test_counting_keeps_no_budget() -> None:
    """transformers' helper keeps what it is told for all later calls."""
    images = SimpleNamespace(patch_size=4, pooling_kernel_size=3, max_soft_tokens=70)
    processor = SimpleNamespace(image_config={}, _processor=SimpleNamespace(image_processor=images))
    assert image_budget.tokens(processor, [(300, 300)], 1120) == [1089]
    assert image_budget.tokens(processor, [(300, 300)], None) == [64]
    processor.image_config["max_soft_tokens"] = 280
    assert image_budget.tokens(processor, [(300, 300)], None) == [256]
    assert image_budget.count(None, processor, [torch.zeros(3, 300, 300)]) == [256]  # type: ignore[arg-type]
