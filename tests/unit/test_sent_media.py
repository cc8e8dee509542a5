"""Videos and sounds as requests send them, through SGLang's Gemma 4 processor, against transformers' own on the same files."""

import asyncio
import base64
import functools
import importlib
import io
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import soundfile  # type: ignore[import-untyped]
import torch
from PIL import Image

from sglang_gemma4.patches import load
from sglang_gemma4.patching import hooks
from sglang_gemma4.serving.media import base64_text, decoding, sent, served, sounds, video
from sglang_gemma4.tiny import checkpoints
from tests.harness import applied
from tests.harness.child import InChild
from tests.harness.inputs import clips

PATCHES = [load(name) for name in ("message_media", "video_times", "request_media", "media_bounds", "audio_padding")]
MODEL = checkpoints.SHIPPED / "tiny-e2b"
SEE, HEAR = "<bos>See <|video|> now", "<bos>Hear <|audio|> now"


@pytest.fixture(scope="module", autouse=True)
def sglang_imported() -> None:
    importlib.import_module("sglang.srt.multimodal.processors.gemma4")
    for patch in PATCHES:
        for hook in patch.hooks:
            hooks.target_of(hook)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("clips")
    for name in clips.CLIPS:
        clips.make(made, name)
    return made


@functools.cache
def with_patches(switch: str) -> None:
    """Once in a child."""
    applied.apply(PATCHES, switch)


class Processor:
    """SGLang's processor with the package's patches, and transformers' beside it."""

    def __init__(self, switch: str = "1", **flags: Any) -> None:
        from sglang.srt import runtime_context
        from sglang.srt.multimodal.processors.gemma4 import Gemma4SGLangProcessor
        from sglang.srt.server_args import ServerArgs
        from transformers import AutoConfig, AutoProcessor

        with_patches(switch)
        runtime_context.publish(ServerArgs(model_path=str(MODEL), device="cpu", **flags), role="tokenizer")
        config = AutoConfig.from_pretrained(MODEL)
        made: Any = Gemma4SGLangProcessor
        self.ours = made(config, None, AutoProcessor.from_pretrained(MODEL), "default")
        self.reference: Any = AutoProcessor.from_pretrained(MODEL)

    def __call__(self, text: str, **media: Any) -> Any:
        request = SimpleNamespace(rid="a", video_data=media.get("video_data"), mm_processor_kwargs=None)
        given = {name: media.get(name) for name in ("image_data", "audio_data")}
        return asyncio.run(self.ours.process_mm_data_async(**given, input_text=text, request_obj=request, max_req_input_len=10**6))

    def differs(self, text: str, media: dict[str, Any], reference: dict[str, Any], feature: str) -> str:
        """What differs from transformers, or nothing."""
        found = self(text, **media)
        wanted = self.reference(text=[text], return_tensors="pt", add_special_tokens=False, **reference)
        if found.input_ids != wanted["input_ids"][0].tolist():
            return f"tokens: {len(found.input_ids)} for {wanted['input_ids'].shape[1]}"
        features = torch.cat([item.feature for item in found.mm_items])
        return "" if torch.equal(features, wanted[feature]) else "features"

    def labels(self, found: Any) -> list[str]:
        return re.findall(r"\d\d:\d\d", self.reference.tokenizer.decode(found.input_ids))


def data(path: Path) -> str:
    return "data:video/mp4;base64," + base64.b64encode(path.read_bytes()).decode()


@clips.MISSING
def test_videos_equal_transformers(folder: Path, in_child: InChild) -> None:
    """By path, as bytes and by address: which frames are shown, with which labels, and the frames themselves."""

    def child() -> list[Any]:
        process, wrong = Processor(), list[Any]()
        for name in ("a minute", "film rate", "uneven"):
            path = next(folder.glob(f"{name.replace(' ', '-')}.*"))
            for way, sent_as in {"path": str(path), "bytes": path.read_bytes(), "data": data(path)}.items():
                different = process.differs(SEE, {"video_data": [sent_as]}, {"videos": [str(path)]}, "pixel_values_videos")
                wrong += [(name, way, different)] if different else []
        return wrong

    assert in_child(child) == []


@clips.MISSING
def test_labels_are_the_container_s_times(folder: Path, in_child: InChild) -> None:
    minute = folder / "a-minute.mp4"

    def child() -> list[Any]:
        process = Processor()
        both = process("<bos>See <|video|> and <|video|> now", video_data=[str(folder / "ten-frames.mp4"), str(minute)])
        return [
            process.labels(process(SEE, video_data=[str(minute)])),
            process.labels(process(SEE, video_data=[str(folder / "ten-frames.mp4")])),
            process.labels(process(SEE, video_data=[str(folder / "one-frame.mp4")])),
            process.labels(both),
        ]

    minutes, ten, one, both = in_child(child)
    assert minutes == [f"{second // 60:02d}:{second % 60:02d}" for second in range(0, 64, 2)]
    assert (ten, one) == (["00:00"] * 10, ["00:00"])
    assert both == ten + minutes


@clips.MISSING
def test_stock_labels_a_minute_as_a_second(folder: Path, in_child: InChild) -> None:
    def child() -> list[str]:
        process = Processor("0")
        return process.labels(process(SEE, video_data=[str(folder / "a-minute.mp4")]))

    assert set(in_child(child)) == {"00:00", "00:01"}


def frames(number: int, size: tuple[int, int] = (48, 36)) -> list[Any]:
    return [Image.effect_noise(size, 90 + at % 9).convert("RGB") for at in range(number)]


def test_frames_without_a_container(in_child: InChild) -> None:
    """Pictures, arrays and tensors; up to 32 at equal distances of more; 24 a second, as transformers has it."""

    def child() -> list[Any]:
        process, wrong = Processor(), list[Any]()
        for number in (5, 32, 50):
            pictures = frames(number)
            arrays = [numpy.asarray(one) for one in pictures]
            whole = torch.from_numpy(numpy.stack(arrays)).permute(0, 3, 1, 2).contiguous()
            for way, given in {"pictures": pictures, "arrays": arrays, "tensor": whole, "numpy": whole.numpy()}.items():
                reference = {"videos": [whole], "do_sample_frames": number >= 32}
                different = process.differs(SEE, {"video_data": [given]}, reference, "pixel_values_videos")
                wrong += [(number, way, different)] if different else []
        return wrong

    assert in_child(child) == []


def refused(process: Processor, text: str, **media: Any) -> str:
    try:
        process(text, **media)
    except ValueError as error:
        return str(error)
    return "served"


def test_what_is_refused_of_videos(in_child: InChild) -> None:
    def child() -> list[str]:
        from sglang.srt.utils.common import VideoData

        process = Processor()
        return [
            refused(process, "<bos>See now", video_data=[frames(2)]),
            refused(process, SEE, video_data=[frames(2), frames(2)]),
            refused(process, SEE, video_data=[[]]),
            refused(process, SEE, video_data=[[*frames(1), *frames(1, (60, 60))]]),
            refused(process, SEE, video_data=[VideoData(url="data:,", preprocess_kwargs={"fps": 2.0})]),
            refused(process, SEE, video_data=[VideoData(url="data:,", max_long_side_pixel=100)]),
            *(refused(process, SEE, video_data=[[address] * 32]) for address in ("http://127.0.0.1:9/a.png", "file:///a.png", "data:,")),
        ]

    parts = ["brings 1 and its prompt has places for 0", "brings 2 and its prompt has places for 1", "no frame", "one size"]
    parts += ["fps 2.0 is not read", "max_long_side_pixel 100 is not read"]
    parts += [f"frame 0 of a list, '{address}" for address in ("http:", "file:", "data:")]
    for found, part in zip(in_child(child), parts, strict=True):
        assert part in found


def test_the_server_s_numbers_of_frames(in_child: InChild) -> None:
    def child() -> list[Any]:
        process = Processor(mm_process_config={"video": {"num_frames": 4}})
        asked = [len(process.labels(process(SEE, video_data=[frames(number)]))) for number in (3, 50)]
        inner = process.reference.video_processor
        by_rate = [len(video.chosen(600, rate, inner, {"fps": 2})) for rate in (60.0, 10.0)]
        huge = Clip(999, 4096, 2304)
        twice = [len(video.chosen(999, 25.0, inner, {"num_frames": number})) for number in (64, 16)]
        process.ours.video_config = {"num_frames": 64}
        return [asked, by_rate, twice, refused(process, SEE, video_data=[frames(64)]), judged(process.ours, huge)]

    asked, by_rate, twice, shown, refusal = in_child(child)
    assert (asked, by_rate, twice, shown) == ([3, 4], [20, 32], [64, 16], "served")
    assert "64 frames of 4096 x 2304 pixels are taken from the video" in refusal


@clips.MISSING
def test_the_server_s_rate_of_frames(folder: Path, in_child: InChild) -> None:
    def child() -> list[str]:
        process = Processor(mm_process_config={"video": {"fps": 0.1}})
        return process.labels(process(SEE, video_data=[str(folder / "a-minute.mp4")]))

    assert in_child(child) == ["00:00", "00:10", "00:21", "00:32", "00:42", "00:53"]


class Clip:
    """Of a decoder: its length and size. Of its frames none is decoded."""

    def __init__(self, number: int, width: int, height: int) -> None:
        self.number, self.frame_shape, self.avg_fps = number, (height, width), 25.0

    def __len__(self) -> int:
        return self.number

    def get_frames_at(self, _indices: list[int]) -> Any:
        raise ValueError("decoded")


def judged(processor: Any, *given: Any, most: int = 10**6) -> str:
    """What is said of videos that SGLang has opened, before and while they are processed."""
    try:
        video.judge_together(given, processor, most)
        for one in given:
            video._frames(one, processor, processor._processor.video_processor)
    except ValueError as error:
        return str(error)
    return "served"


def test_videos_of_a_request_are_judged_together(in_child: InChild) -> None:
    def child() -> list[str]:
        process = Processor()
        large, small = Clip(999, 3840, 2160), Clip(999, 1280, 720)
        cases = [judged(process.ours, *[large] * number) for number in (2, 3, 50)]
        cases += [judged(process.ours, *[small] * 10, most=number) for number in (21_120, 21_119)]
        process.ours.video_config = {"num_frames": 8}
        return [*cases, judged(process.ours, *[large] * 6)]

    two, three, many, ten, tokens, eight = in_child(child)
    assert (two, ten, eight) == ("decoded", "decoded", "decoded")
    assert "3 videos show 96 frames of 796262400 pixels together, and those of a request may have 603979776" in three
    assert "50 videos show 1600 frames" in many
    assert "10 videos show 320 frames that make 21120 tokens and a prompt may have 21119" in tokens


RATES = (8_000, 16_000, 22_050, 44_100, 48_000)


def wav(seconds: float, rate: int, channels: int = 1, form: str = "WAV") -> bytes:
    time = numpy.arange(round(seconds * rate)) / rate
    left = 0.3 * numpy.sin(2 * numpy.pi * 440 * time) + 0.1 * numpy.sin(2 * numpy.pi * 1_777 * time)
    both = numpy.stack([left, 0.2 * numpy.sin(2 * numpy.pi * 300 * time)], 1)
    file = io.BytesIO()
    soundfile.write(file, left if channels == 1 else both, rate, format=form, subtype="PCM_16" if form == "WAV" else None)
    return file.getvalue()


@clips.MISSING
def test_sounds_equal_transformers(in_child: InChild) -> None:
    """Five rates, one and two channels, from two soft tokens to 30 s."""

    def child() -> list[Any]:
        process, wrong = Processor(), list[Any]()
        for rate in RATES:
            for channels in (1, 2):
                for seconds in (0.05, 1, 2.05, 30)[: 5 - channels]:
                    address = "data:audio/wav;base64," + base64.b64encode(wav(seconds, rate, channels)).decode()
                    different = process.differs(HEAR, {"audio_data": [address]}, {"audio": [address]}, "input_features")
                    wrong += [(rate, channels, seconds, different)] if different else []
        return wrong

    assert in_child(child) == []


def test_how_short_and_how_long_a_sound_may_be(in_child: InChild) -> None:
    def child() -> list[Any]:
        process = Processor()

        def heard(samples: int) -> Any:
            address = "data:;base64," + base64.b64encode(wav(samples / 16_000, 16_000)).decode()
            try:
                return process(HEAR, audio_data=[address]).input_ids.count(7)
            except ValueError as error:
                return str(error)

        by_count = [len(process.reference.tokenizer.encode("")), sounds.least(process.reference), sounds.longest(process.reference)]
        numbers = [process.reference._compute_audio_num_tokens(numpy.zeros(samples), 16_000) for samples in (160, 161, 480_000)]
        return [heard(80), heard(160), heard(161), heard(480_000), heard(484_800), heard(485_000), by_count[1:], numbers]

    short, edge, least, longest, tail, over, by_count, numbers = in_child(child)
    assert (
        "clip 0 is 5.0 ms long, 80 samples of 16 kHz, and is too short to produce one audio token; send at least 161 samples, 10.1 ms"
        in short
    )
    assert "160 samples" in edge
    assert (least, longest, tail) == (1, 750, 750)
    assert "the audio is 30.3 s long and this model takes 30 s" in over
    assert (by_count, numbers) == ([161, 480_000], [0, 1, 750])


@pytest.mark.parametrize("form", ["WAV", "MP3"])
def test_a_long_sound_is_refused_by_its_header(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is decoded, as what it would become may not be kept."""
    monkeypatch.setattr(served, "_here", threading.Event())
    served.mark()
    whole = wav(40, 16_000, form=form)

    def load(_source: Any) -> Any:
        raise ValueError("decoded")

    def heard(longest: int | None, file: bytes = whole) -> str:
        address = decoding.Address.within("data:;base64," + base64.b64encode(file).decode(), decoding.Budget(longest=longest))
        try:
            decoding.load_sound_within(load, address)
        except ValueError as error:
            return str(error)
        return "served"

    assert heard(480_000).startswith("the audio is 40.0 s long and this model takes 30 s; send it in pieces")
    assert heard(None) == "decoded"
    if form == "MP3":
        uncounted = whole.replace(b"Xing", b"xxxx").replace(b"Info", b"xxxx")
        assert heard(480_000, uncounted) == "decoded", "its length is an estimate"


def test_an_operator_may_have_long_sounds_cut(in_child: InChild) -> None:
    def child() -> int:
        process = Processor(mm_process_config={"audio": {"truncation": True}})
        address = "data:;base64," + base64.b64encode(wav(40, 8_000)).decode()
        return int(process(HEAR, audio_data=[address]).input_ids.count(7))

    assert in_child(child) == 750


def test_the_encoder_free_model_takes_any_sample() -> None:
    assert sounds.least(SimpleNamespace(feature_extractor=SimpleNamespace())) == 1


def png() -> str:
    file = io.BytesIO()
    Image.effect_noise((40, 30), 90).convert("RGB").save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def spellings(encoded: str, kind: str) -> dict[str, str]:
    lines = "\r\n".join(encoded[at : at + 76] for at in range(0, len(encoded), 76))
    web = encoded.replace("+", "-").replace("/", "_")
    return {
        "lines": f"data:{kind};base64,{lines}\n",
        "web": f"data:{kind};base64,{web}",
        "bare": f"data:{kind};base64,{encoded.rstrip('=')}",
        "web, bare, lines": f"data:{kind};base64," + web.rstrip("=")[:50] + "\n" + web.rstrip("=")[50:],
        "charset": f"data:{kind};charset=utf-8;base64,{encoded}",
        "name": f"data:{kind};name=a.png;base64,{encoded}",
        "large letters": f"DATA:{kind.upper()};BASE64,{encoded}",
        "percent": f"data:{kind};base64,{encoded.replace('+', '%2B').replace('/', '%2F').replace('=', '%3D')}",
        "raw": encoded,
        "raw lines": lines,
        "raw web": web.rstrip("="),
    }


def test_spellings_of_base64(in_child: InChild) -> None:
    """Images, sounds and videos come out as from plain base64."""
    for encoded in (png(), base64.b64encode(wav(0.11, 16_000)).decode()):
        for name, spelled in spellings(encoded, "image/png").items():
            head, _, payload = sent.tidy(spelled).rpartition(",")
            assert payload == encoded, name
            assert not head or head.startswith("data:"), name

    def child() -> list[Any]:
        process, picture, sound = Processor(), png(), base64.b64encode(wav(0.11, 16_000)).decode()
        plain = process("<bos>a <|image|> b", image_data=[f"data:image/png;base64,{picture}"])
        loud = process(HEAR, audio_data=[f"data:audio/wav;base64,{sound}"])
        wrong = []
        for name, spelled in spellings(picture, "image/png").items():
            found = process("<bos>a <|image|> b", image_data=[spelled])
            wrong += [] if torch.equal(found.mm_items[0].feature, plain.mm_items[0].feature) else [name]
        for name, spelled in spellings(sound, "audio/wav").items():
            if name != "raw":  # SGLang takes that for a path; over HTTP it is an address before
                found = process(HEAR, audio_data=[spelled])
                wrong += [] if torch.equal(found.mm_items[0].feature, loud.mm_items[0].feature) else [name]
        return wrong

    assert in_child(child) == []


@clips.MISSING
def test_long_base64_is_respelled_where_it_is_loaded(folder: Path, in_child: InChild) -> None:
    """The event loop passes it on as it came."""
    file = io.BytesIO()
    Image.effect_noise((90, 70), 90).convert("RGB").save(file, "PNG")
    picture, loud = base64.b64encode(file.getvalue()).decode(), base64.b64encode(wav(1, 16_000)).decode()
    film = base64.b64encode((folder / "ten-frames.mp4").read_bytes()).decode()
    assert min(map(len, (picture, loud, film))) > base64_text.SCANNED

    def child() -> list[Any]:
        process, wrong = Processor(), list[Any]()
        texts = {"image_data": ("<bos>a <|image|> b", picture), "audio_data": (HEAR, loud), "video_data": (SEE, film)}
        for field, (text, encoded) in texts.items():
            plain = process(text, **{field: [f"data:;base64,{encoded}"]}).mm_items[0].feature
            for name, spelled in spellings(encoded, "image/png").items():
                found = refused(process, text, **{field: [spelled]})
                same = found == "served" and torch.equal(process(text, **{field: [spelled]}).mm_items[0].feature, plain)
                wrong += [] if same else [(field, name, found)]
        wrong.append(refused(process, "<bos>a <|image|> b", image_data=["data:;base64," + "A*" * base64_text.SCANNED]))
        return wrong

    *wrong, said = in_child(child)
    assert wrong == []
    assert "Error while loading data" in said
