"""Answers about images: by their modes, orientations and budgets, each image its own, with SGLang's caches on and off."""

import base64
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from transformers.image_utils import load_image

from sglang_gemma4.serving.media import image_budget
from tests.engine.test_request_media import chat, generate, look, post, written
from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.live_server import MODEL, Server
from tests.harness.oracles.transformers_oracle import decode
from tests.unit.test_image_files import file

QUESTION = "<bos>Where does <|image|> live with"
UNCACHED = {"SGLANG_VLM_CACHE_SIZE_MB": "0"}
FILES = (
    ("RGB", "PNG"),
    ("L", "JPEG"),
    ("CMYK", "JPEG"),
    ("YCbCr", "JPEG"),
    ("RGBA", "WEBP"),
    ("P", "PNG"),
    ("I;16", "PNG"),
    ("LAB", "TIFF"),
)
SQUARE = Image.new("RGB", (300, 300), "purple")
TOKENS = dict(zip(image_budget.BUDGETS, (64, 121, 256, 529, 1089), strict=True))
"""Of a square image: the largest square within the budget."""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of each mode, the orientations dealt out over them, and plain ones of equal patches in rows of other lengths."""
    folder, found = tmp_path_factory.mktemp("pictures"), []
    for number, (mode, form) in enumerate(FILES):
        for orientation in (1 + number % 8, 1 + (number + 5) % 8):
            found.append(folder / f"{mode.replace(';', '')}{orientation}.{form.lower()}")
            found[-1].write_bytes(file(mode, form, orientation))
    for size in ((96, 48), (48, 96), (192, 96), (24, 24)):
        found.append(folder / f"{size[0]}.png")
        Image.new("RGB", size, "purple").save(found[-1])
    return found


def ask(nursery: Nursery, model: str, pictures: list[Path], env: dict[str, str] | None = None, **engine: Any) -> list[Output]:
    """Answers about each picture alone, one after the other, and then again."""
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    groups = [Group([QUESTION], sampling, images=[str(path)], logprobs=True) for path in pictures * 2]
    return [answers[0] for answers in nursery.run(checkpoint(model), groups, env=env, skip_tokenizer_init=False, **engine)]


def checkpoint(name: str) -> Path:
    from sglang_gemma4.tiny import checkpoints

    return checkpoints.SHIPPED / name


@pytest.mark.parametrize("model", ["tiny-e2b", "tiny-26b-a4b"])
def test_each_picture_has_its_own_answer(model: str, pictures: list[Path], nursery: Nursery, tmp_path: Path) -> None:
    kept = ask(nursery, model, pictures)
    anew = ask(nursery, model, pictures, env=UNCACHED, disable_radix_cache=True)
    theirs = decode(checkpoint(model), [{"text": QUESTION, "images": [upright(path, tmp_path)]} for path in pictures], 4, tmp_path)
    assert all(output.meta_info["cached_tokens"] > 30 for output in kept[len(pictures) :])
    for number, path in enumerate(pictures):
        for answers in (kept, anew):
            for one in (answers[number], answers[number + len(pictures)]):
                assert one.token_ids == theirs[number].token_ids, path.name
                assert one.logprobs == pytest.approx(theirs[number].logprobs, abs=2e-3), path.name


def upright(path: Path, folder: Path) -> str:
    """The picture as transformers loads it."""
    load_image(str(path)).save(folder / f"{path.name}.png")
    return str(folder / f"{path.name}.png")


def prompt_tokens(server: Server, **asked: Any) -> int:
    status, text = chat(server, look(written(SQUARE)), **asked)
    assert status == 200, text
    return int(json.loads(text)["usage"]["prompt_tokens"])


def test_a_request_sets_its_budget(server: Server) -> None:
    """On each endpoint that has the field a square image takes exactly the tokens of its budget; the server's own is 70."""
    least = prompt_tokens(server)
    for budget, tokens in TOKENS.items():
        assert prompt_tokens(server, mm_processor_kwargs={"max_soft_tokens": budget}) - least == tokens - TOKENS[70]
    url, asked = written(SQUARE), {"images_kwargs": {"max_soft_tokens": 280}}
    raw = {"text": "<bos>What is <|image|> here?", "image_data": url}
    assert generated(server, **raw, mm_processor_kwargs=asked) - generated(server, **raw) == TOKENS[280] - TOKENS[70]
    content = [look(url), {"type": "text", "text": "What is it?"}]
    body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": content}], "mm_processor_kwargs": asked}
    status, text = post(server, "/invocations", **body)
    assert status == 200, text
    assert json.loads(text)["usage"]["prompt_tokens"] - least == TOKENS[280] - TOKENS[70]


def generated(server: Server, **asked: Any) -> int:
    """Tokens of the prompt of a request to /generate."""
    status, text = generate(server, **asked)
    assert status == 200, text
    return int(json.loads(text)["meta_info"]["prompt_tokens"])


def test_no_budget_is_ignored(server: Server) -> None:
    url = written(SQUARE)
    wrong = [{"max_soft_tokens": 100}, {"max_soft_tokens": "70"}, {"min_pixels": 9}, {"images_kwargs": {"size": 9}}]
    for asked in wrong:
        status, text = chat(server, look(url), mm_processor_kwargs=asked)
        assert (status, "mm_processor_kwargs" in text) == (400, True), text
        assert generate(server, text="<bos>a <|image|> b", image_data=url, mm_processor_kwargs=asked)[0] == 400
    assert chat(server, {"type": "image_url", "image_url": {"url": url, "max_long_side_pixel": 99}})[0] == 400
    assert chat(server, look(url), images_config={"image_mode": "base"})[0] == 400
    data = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png()).decode()}
    content = [{"type": "image", "source": data}, {"type": "text", "text": "?"}]
    other = {"mm_processor_kwargs": {"max_soft_tokens": 560}, "model": MODEL}
    assert post(server, "/v1/messages", max_tokens=4, messages=[{"role": "user", "content": content}], **other)[0] == 400
    content = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "?"}]
    assert post(server, "/v1/responses", max_output_tokens=4, input=[{"role": "user", "content": content}], **other)[0] == 400


def png() -> bytes:
    made = io.BytesIO()
    SQUARE.save(made, "PNG")
    return made.getvalue()


@pytest.mark.parametrize("budget", [280, 1120])
def test_a_server_s_budget(budget: int, nursery: Nursery, tmp_path: Path) -> None:
    """Pictures of two sizes in one batch of the encoder, against transformers with a processor of this budget."""
    model, theirs = checkpoint("tiny-e2b"), tmp_path / "model"
    shutil.copytree(model, theirs)
    config = json.loads((theirs / "processor_config.json").read_text())
    config["image_processor"]["max_soft_tokens"] = budget
    (theirs / "processor_config.json").write_text(json.dumps(config))
    paths = [str(tmp_path / "square.png"), str(tmp_path / "wide.png")]
    Image.open(io.BytesIO(file("RGB", "PNG", 1))).resize((300, 300)).save(paths[0])
    Image.open(io.BytesIO(file("L", "PNG", 1))).resize((200, 60)).save(paths[1])
    expected = decode(theirs, [{"text": QUESTION, "images": [path]} for path in paths], 4, tmp_path)
    group = Group([QUESTION] * 2, {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}, images=paths, logprobs=True)
    flag: dict[str, Any] = {"mm_process_config": {"image": {"max_soft_tokens": budget}}, "max_total_tokens": 8192}
    (found,) = nursery.run(model, [group], time_limit=300.0, skip_tokenizer_init=False, **flag)
    for one, other in zip(found, expected, strict=True):
        assert one.meta_info["prompt_tokens"] == len(other.input_ids)
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=2e-3)
