"""Media that ended or stalled the server, sent to a real one, while a bystander asks the same question again and again."""

import base64
import io
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import pytest
import soundfile  # type: ignore[import-untyped]
from PIL import Image

from sglang_gemma4.tiny import images
from tests.harness.live_server import MODEL, Server

QUESTION = "<bos>Who is the ruler of the land?"
LOOK = "<bos>What colour is <|image|> here?"


def post(server: Server, path: str, **body: Any) -> tuple[int, str]:
    """Status and text of an answer."""
    request = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def generate(server: Server, **asked: Any) -> tuple[int, str]:
    return post(server, "/generate", sampling_params={"max_new_tokens": 4, "temperature": 0}, **asked)


def chat(server: Server, *parts: dict[str, Any], **more: Any) -> tuple[int, str]:
    content = [*parts, {"type": "text", "text": "What is it?"}]
    return post(
        server, "/v1/chat/completions", model=MODEL, max_tokens=4, temperature=0, messages=[{"role": "user", "content": content}], **more
    )


def written(image: Image.Image, form: str = "PNG") -> str:
    file = io.BytesIO()
    image.save(file, form)
    return "data:;base64," + base64.b64encode(file.getvalue()).decode()


def look(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def sound() -> str:
    file = io.BytesIO()
    soundfile.write(file, 0.2 * numpy.sin(numpy.arange(16_000) / 6), 16_000, format="WAV")
    return base64.b64encode(file.getvalue()).decode()


@contextmanager
def bystander(server: Server) -> Iterator[None]:
    """Asks :data:`QUESTION` throughout; its answers must all be the same."""
    answers, ended = [generate(server, text=QUESTION)], threading.Event()

    def ask() -> None:
        while not ended.is_set():
            answers.append(generate(server, text=QUESTION))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert len(answers) > 2
    assert {(status, json.loads(text)["text"]) for status, text in answers} == {(200, json.loads(answers[0][1])["text"])}


PICTURE = images.draw(5_000_000, "red")
RED = written(PICTURE)
INPUT = {"type": "input_audio", "input_audio": {"data": sound(), "format": "wav"}}
LACKS = "takes text, images and videos, no audio"
LOCAL = "SGLANG_GEMMA4_LOCAL_MEDIA"


def test_what_is_refused(server: Server) -> None:
    bomb = written(Image.new("1", (20_000, 20_000)))
    refused = {
        "a sound, chat": (chat(server, INPUT), LACKS),
        "a sound, streamed": (chat(server, INPUT, stream=True), LACKS),
        "a sound by address": (chat(server, {"type": "audio_url", "audio_url": {"url": "data:;base64," + sound()}}), LACKS),
        "a sound, generate": (generate(server, text="<bos>a <|audio|>", audio_data=sound()), LACKS),
        "a sound in a batch": (generate(server, text=["a", "b"], audio_data=[None, sound()]), LACKS),
        "a bomb": (chat(server, look(bomb)), "pixels"),
        "many": (chat(server, *[look(written(Image.new("L", (7_000, 7_000))))] * 5), "images of one request"),
        "nothing": (chat(server, look("data:image/png;base64,")), "cannot identify"),
        "half": (chat(server, look(RED[: RED.index(",") + 1 + 400])), "Could not decode"),
        "a drawing": (chat(server, look("data:;base64," + base64.b64encode(b"<svg/>").decode())), "cannot identify"),
        "a film that is none": (chat(server, {"type": "video_url", "video_url": {"url": "data:;base64,AAAA"}}), "video"),
        "two for one place": (generate(server, text=LOOK, image_data=[RED, RED]), "brings 2 and its prompt has places for 1"),
        "one for two places": (generate(server, text=LOOK + LOOK, image_data=[RED]), "2 image placeholders"),
        "one for none": (generate(server, text="<bos>a <image|><|image>", image_data=[RED]), "places for 0"),
        "a sound's place": (generate(server, text=LOOK + "<|audio|>", image_data=[RED]), "<|audio|>"),
        "places side by side": (generate(server, input_ids=[2, 4, 4, 300], image_data=[RED, RED]), "places for 1"),
        "nothing but places": (generate(server, input_ids=[4], image_data=[RED]), "places for 0"),
        "negative ids": (generate(server, input_ids=[-1, 4], image_data=[RED]), ""),
        "features": (generate(server, text=LOOK, image_data={"format": "precomputed_embedding", "feature": [[0.0]]}), "format"),
        "another's features": (generate(server, text=LOOK, image_data=RED, mm_hashes=["ff"]), "--trust-mm-content-hashes"),
        "a file": (chat(server, look("file:///etc/passwd")), LOCAL),
        "no file": (chat(server, look("file:///etc/nothing")), LOCAL),
        "a path": (generate(server, text=LOOK, image_data=__file__), LOCAL),
        "a file, messages": (messages(server, {"type": "url", "url": "file:///etc/passwd"}), LOCAL),
        "a file, ollama": (
            post(
                server,
                "/api/chat",
                model=MODEL,
                stream=False,
                messages=[{"role": "user", "content": "?", "images": ["file:///etc/passwd"]}],
            ),
            "images",
        ),
    }
    wrong = {name: found for name, (found, said) in refused.items() if found[0] != 400 or said not in found[1].replace("\\u003c", "<")}
    assert not wrong


def messages(server: Server, source: dict[str, str]) -> tuple[int, str]:
    content = [{"type": "image", "source": source}, {"type": "text", "text": "?"}]
    return post(server, "/v1/messages", model=MODEL, max_tokens=4, messages=[{"role": "user", "content": content}])


def test_ollama_s_clients_show_images_too(server: Server) -> None:
    """The answer is that of chat completions, whole and streamed to its last token."""
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "What is it?", "images": [RED.partition(",")[2]]}]}
    found = json.loads(chat(server, look(RED))[1])
    choice, usage = found["choices"][0], found["usage"]
    assert choice["message"]["content"]
    expected = [choice["message"]["content"], choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"]]
    for stream in (False, True):
        options = {"num_predict": 4, "temperature": 0, "seed": 1, "top_k": 0}
        lines = [json.loads(line) for line in post(server, "/api/chat", **asked, options=options, stream=stream)[1].splitlines()]
        end = lines[-1]
        text = "".join(line["message"]["content"] for line in lines)
        assert [text, end["done_reason"], end["prompt_eval_count"], end["eval_count"]] == expected
    cut = json.loads(post(server, "/api/chat", **asked, options={"num_predict": 1}, stream=False)[1])
    assert (cut["done_reason"], cut["eval_count"]) == ("length", 1)


def test_a_bystander_notices_nothing(server: Server) -> None:
    with bystander(server):
        for _ in range(2):
            assert generate(server, text="<bos>a <|audio|>", audio_data=sound())[0] == 400
            assert generate(server, text=LOOK, image_data=written(Image.new("L", (6_000, 6_000))))[0] == 200
            assert chat(server, look(RED), look(written(PICTURE.convert("L"), "JPEG")))[0] == 200


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "I;16", "CMYK"])
def test_images_of_other_modes_are_answered_as_rgb(server: Server, mode: str) -> None:
    """As transformers converts them."""
    image = Image.fromarray(numpy.asarray(PICTURE.convert("L")).astype("uint16") * 200) if mode == "I;16" else PICTURE.convert(mode)
    sent = written(image, "TIFF" if mode == "CMYK" else "PNG")
    plain = written(Image.open(io.BytesIO(base64.b64decode(sent.partition(",")[2]))).convert("RGB"))
    assert answer(server, sent) == answer(server, plain)


def answer(server: Server, image: str) -> list[float]:
    status, text = generate(server, text=LOOK, image_data=image, return_logprob=True)
    assert status == 200, text
    return [round(entry[0], 4) for entry in json.loads(text)["meta_info"]["output_token_logprobs"]]


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (1, 5_000), (5_000, 1), (2, 60_000)])
def test_images_of_odd_sizes(server: Server, size: tuple[int, int]) -> None:
    assert generate(server, text=LOOK, image_data=written(Image.new("RGB", size)))[0] == 200


@pytest.mark.parametrize("text", ["<|image|>", "<|audio|>", "<|video|>", "<|image><|image|><image|>", "<|audio>", "<image|>"])
def test_placeholders_in_a_text_are_tokens_in_raw_prompts_and_text_in_chats(server: Server, text: str) -> None:
    assert generate(server, text=f"<bos>a {text} b")[0] == 200
    assert chat(server, {"type": "text", "text": text})[0] == 200
    status, said = chat(server, look(RED), {"type": "text", "text": text})
    assert status == 200, said
