"""Media of a request: where they may come from, what a model takes, and features against placeholders. No engine is needed."""

import asyncio
import base64
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalInputFormat
from sglang.srt.multimodal.transport.cuda_ipc import CudaIpcTensorTransportProxy
from sglang.srt.utils import ImageData

from sglang_gemma4.patching import switches
from sglang_gemma4.serving.media import accepted, addresses, placeholders, processing, request_media


@dataclass
class Request:
    """The fields of SGLang's requests that are read."""

    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    mm_hashes: Any = None


def judged(data: Any, folder: Path | None = None) -> Any:
    request = Request(image_data=data)
    addresses.judge(request, False, {} if folder is None else {switches.LOCAL_MEDIA: str(folder)})
    return request.image_data


@pytest.mark.parametrize("address", ["https://a.b/c.png", "http://a.b/c.png", "data:image/png;base64,AAAA"])
def test_what_is_elsewhere_stays_as_it_is(address: str) -> None:
    assert judged(address) == address
    assert judged([[address]]) == [[address]]
    assert judged([ImageData(url=address)])[0].url == address


def test_base64_becomes_a_data_address() -> None:
    """Also that of a JPEG, which begins as a path does: stock opens it."""
    text = base64.b64encode(b"\xff\xd8\xff\xe0" + b"0" * 50).decode()
    assert text.startswith("/9j/")
    assert judged(text) == f"data:;base64,{text}"


@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "/etc/passwd", "setup.py", "ftp://a/b.png", "", "file:", "C:\\x.png", "\0", "/tmp/" + "x" * 5000]
)
def test_local_files_are_refused(address: str, tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(ValueError, match=r"image_data: .* names the folders of such files in SGLANG_GEMMA4_LOCAL_MEDIA$"):
            judged([address], folder)


def test_only_files_that_really_lie_below_a_named_folder_are_read(tmp_path: Path) -> None:
    named, private = tmp_path / "named", tmp_path / "private"
    for folder in (named, private):
        folder.mkdir()
        (folder / "a b.png").write_bytes(b"x")
    (named / "link.png").symlink_to(private / "a b.png")
    (named / "loop.png").symlink_to(named / "loop.png")
    (tmp_path / "named2").mkdir()
    (tmp_path / "named2" / "x.png").write_bytes(b"x")
    allowed = f"{named}/a b.png"
    assert judged(allowed, named) == judged(f"file://{named}/a%20b.png", named) == judged(f"{private}/../named/a b.png", named) == allowed
    said = set()
    for path in (
        "private/a b.png",
        "named/../private/a b.png",
        "named/link.png",
        "named/loop.png",
        "named/none.png",
        "none/x.png",
        "named2/x.png",
    ):
        address = f"file://{tmp_path}/{path}"
        with pytest.raises(ValueError, match="no http") as error:
            judged(address, named)
        said.add(str(error.value).partition(" is no http")[2])
    assert len(said) == 1, "the error does not tell what is there"


def test_a_folder_that_is_none_ends_the_start(tmp_path: Path) -> None:
    for value in ("relative", str(tmp_path / "none")):
        with pytest.raises(switches.SwitchError, match="which is no absolute path of a folder"):
            addresses.named_folders({switches.LOCAL_MEDIA: value})
    assert addresses.named_folders({switches.LOCAL_MEDIA: f"{tmp_path}:/"}) == [tmp_path.resolve(), Path("/")]


def test_features_and_cache_keys_over_http() -> None:
    with pytest.raises(ValueError, match="brings features in the place of media"):
        judged([{"format": "precomputed_embedding", "feature": [[0.0]]}])
    with pytest.raises(ValueError, match="--trust-mm-content-hashes"):
        addresses.judge(Request(mm_hashes=["ff"]), False, {})
    addresses.judge(Request(mm_hashes=["ff"]), True, {})


CONFIG = SimpleNamespace(
    vision_config=SimpleNamespace(patch_size=4, pooling_kernel_size=3, position_embedding_size=64),
    audio_config=None,
    text_config=SimpleNamespace(hidden_size=32, vocab_size=100),
    image_token_id=4,
    audio_token_id=7,
    video_token_id=22,
)


def test_what_a_model_lacks_is_named() -> None:
    sound = Request(audio_data=[None, "data:,"])
    said = accepted.refusal(sound, CONFIG, True, "tiny")
    assert said == (
        "audio_data: tiny takes text, images and videos, no audio: the model has no audio tower; send the request without audio, "
        "or to a model that takes audio"
    )
    flag = accepted.refusal(Request(image_data="x"), CONFIG, False, "tiny", "the server runs with --language-model-only")
    assert flag is not None
    assert flag.startswith("image_data: tiny takes text only, no images: the server runs with --language-model-only; ")
    assert accepted.refusal(Request(image_data=["x"], video_data=["y"]), CONFIG, True, "tiny") is None
    assert accepted.refusal(Request(image_data=[None, []]), CONFIG, False, "tiny") is None


def picture(width: int = 6, height: int = 6, **changed: Any) -> MultimodalDataItem:
    """An image as the processor gives it, with room for 54 patches."""
    positions = torch.full((1, 54, 2), -1)
    grid = torch.stack(torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy"), -1).reshape(-1, 2)
    positions[0, : len(grid)] = grid
    made: dict[str, Any] = {"modality": Modality.IMAGE, "feature": torch.ones(1, 54, 48), "offsets": [(1, width * height // 9)], **changed}
    made.setdefault("model_specific_data", {"image_position_ids": positions})
    return MultimodalDataItem(**made)


def far_away() -> MultimodalDataItem:
    """An image with patches at places that the tower has no embedding of."""
    item = picture()
    item.model_specific_data["image_position_ids"] += 100
    return item


def judge(*items: MultimodalDataItem, number: int | None = 1, places: int = 4) -> None:
    output = SimpleNamespace(mm_items=list(items), input_ids=[2, *[4] * places, 5])
    placeholders.judge(output, {"image": number}, CONFIG)


def test_features_that_fit_their_places() -> None:
    judge(picture())
    judge(picture(feature=torch.ones(4, 32), format=MultimodalInputFormat.PRECOMPUTED_EMBEDDING), number=None)
    judge(number=0)


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([], "brings 1 and its prompt has places for 0"),
        ([picture(offsets=[(1, 3)])], "features are 4 rows and the prompt has 3"),
        ([picture(offsets=[(0, 3)])], "are not all <|image|>"),
        ([picture(offsets=[(3, 9)])], "are not all <|image|>"),
        ([picture(pad_value=50)], "pad_value 50 is a token"),
        ([picture(feature=torch.ones(1, 54, 16))], r"of \[16\] columns; this model takes 48"),
        ([picture(feature=torch.ones(1, 53, 48))], "image_position_ids of"),
        ([picture(model_specific_data={})], "without image_position_ids"),
        ([picture(feature=[1.0])], "must be tensors, not float"),
        ([far_away()], "patches in rows and columns of"),
        ([picture(), picture()], "brings 1 and its prompt has places for 2"),
    ],
)
def test_features_that_do_not(items: list[MultimodalDataItem], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        judge(*items)


def on_a_gpu(item: MultimodalDataItem) -> MultimodalDataItem:
    """The item as SGLang sends it where a GPU prepares images: its pixels are a handle of memory there, whose shape is known."""
    pixels = item.feature
    nowhere: dict[str, Any] = dict.fromkeys(("pool_byte_offset", "ready_byte_offset", "ack_byte_offset", "generation"), 0)
    item.feature = CudaIpcTensorTransportProxy(
        pixels.flatten().view(torch.uint8), pixels, pool_ipc_handle=(0,), total_consumer_count=1, use_pool_handle_cache=True, **nowhere
    )
    return item


def test_features_on_a_gpu_are_judged_by_their_shape() -> None:
    """Every GPU server with an image encoder warms up with such an image: an error here ends its start."""
    judge(on_a_gpu(picture()))
    with pytest.raises(ValueError, match="the features are 4 rows and the prompt has 3"):
        judge(on_a_gpu(picture(offsets=[(1, 3)])))


class Pool:
    """SGLang's ``MmItemMemoryPool``: which slices came back that were never sent."""

    def __init__(self) -> None:
        self.back: list[Any] = []

    def cancel_proxy(self, proxy: Any) -> None:
        self.back.append(proxy)


@pytest.mark.parametrize(
    ("item", "later"), [(picture(offsets=[(1, 3)]), None), (picture(), ValueError("longer than the context")), (picture(), None)]
)
def test_features_of_a_refused_request_leave_the_gpu(
    item: MultimodalDataItem, later: ValueError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they do not fit, or SGLang refuses the request afterwards: no scheduler would ever free their memory."""
    pool, there = Pool(), on_a_gpu(item)
    monkeypatch.setattr("sglang.srt.runtime_context.get_disagg", lambda: SimpleNamespace(language_model_only=False))
    monkeypatch.setattr("sglang.srt.runtime_context.get_serving", lambda: SimpleNamespace(served_model_name="tiny"))
    config = SimpleNamespace(**vars(CONFIG), architectures=["Gemma4ForConditionalGeneration"])
    manager = SimpleNamespace(model_config=SimpleNamespace(hf_config=config), mm_processor=object())
    processor = SimpleNamespace(hf_config=CONFIG, mm_io_worker_num=1, cudaipc_mmfeature_pool=pool, audio_config={"truncation": True})
    output = SimpleNamespace(input_ids=[2, 4, 4, 4, 4, 5], mm_items=[there])

    async def processed(_processor: Any, **_kwargs: Any) -> Any:
        return output

    async def tokenize(_manager: Any, _request: Any) -> Any:
        await processing.process(processed, processor, image_data=["data:,"], request_obj=Request())
        if later is not None:
            raise later
        return "sent"

    serving = request_media.judge_modalities(tokenize, manager, Request(image_data=["data:,"]))
    refused = later is not None or item.offsets == [(1, 3)]
    if refused:
        with pytest.raises(ValueError, match=r"rows|longer"):
            asyncio.run(serving)
    else:
        assert asyncio.run(serving) == "sent"
    assert pool.back == ([there.feature] if refused else [])


def test_features_that_are_no_numbers() -> None:
    bad = torch.full((4, 32), float("nan"))
    with pytest.raises(ValueError, match="no numbers"):
        judge(picture(feature=bad, format=MultimodalInputFormat.PRECOMPUTED_EMBEDDING), number=None)


def test_a_large_image_is_made_a_tensor_by_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image
    from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]

    monkeypatch.setattr(processing, "STRIP", 100)
    for size in ((7, 90), (90, 7), (200, 3), (1, 1)):
        image = Image.effect_noise(size, 50).convert("RGB")
        assert torch.equal(processing.in_strips(image), functional.pil_to_tensor(image)), size


def test_whose_fault_an_error_is() -> None:
    assert not processing._is_ours(RuntimeError("shape '[2]' is invalid"))
    wrapped = RuntimeError("loading")
    wrapped.__context__ = MemoryError()
    assert processing._is_ours(wrapped)
    assert processing._is_ours(torch.OutOfMemoryError("CUDA out of memory"))
