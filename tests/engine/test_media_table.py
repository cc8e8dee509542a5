"""Videos and sounds through a real server against transformers on the same files: E2B with an audio tower, on the CPU engine.

Each question is asked twice, so that the second answer comes from the caches of prefixes and features; once more without any cache.
"""

import base64
import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import soundfile  # type: ignore[import-untyped]

from sglang_gemma4.serving.media import literal
from sglang_gemma4.tiny import audio
from tests.engine.test_oracle import LOGPROB_TOLERANCE
from tests.harness.inputs import clips
from tests.harness.live_server import Server, open_server
from tests.harness.oracles.transformers_oracle import Greedy, decode

pytestmark = clips.MISSING
NEW_TOKENS = 6
SEE, HEAR = "<bos>What happens <|video|> here?", "<bos>What is said <|audio|> here?"
VIDEOS = ("a minute", "film rate", "uneven", "red, a minute", "red, half a minute")
"""The last two have the same frames at other times."""
SOUNDS = ((0.05, 8_000, 1), (1, 16_000, 1), (2.05, 22_050, 2), (30, 44_100, 1), (0.7, 48_000, 2))
"""Seconds, samples a second, channels."""
FLAGS = {
    "caches": ("--max-total-tokens", "16384", "--sleep-on-idle"),
    "no caches": ("--max-total-tokens", "16384", "--sleep-on-idle", "--disable-radix-cache", "--mm-preprocess-cache-size-mb", "0"),
}
MEDIA = {"videos": "video_data", "heard": "audio_data"}


@dataclass
class Table:
    """What is asked, and what transformers makes of it."""

    model: Path
    asked: list[dict[str, Any]]
    oracle: list[Greedy]


def tones(path: Path, seconds: float, rate: int, channels: int) -> str:
    time = numpy.arange(round(seconds * rate)) / rate
    left = 0.3 * numpy.sin(2 * numpy.pi * (300 + 40 * seconds) * time) * (0.6 + 0.4 * numpy.sin(5 * time))
    soundfile.write(path, left if channels == 1 else numpy.stack([left, 0.1 * numpy.sin(2_000 * time)], 1), rate, subtype="PCM_16")
    return str(path)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    folder = tmp_path_factory.mktemp("table")
    asked: list[dict[str, Any]] = [{"text": SEE, "images": [], "videos": [str(clips.make(folder, name))]} for name in VIDEOS]
    for seconds, rate, channels in SOUNDS:
        asked.append({"text": HEAR, "images": [], "heard": [tones(folder / f"{rate}.wav", seconds, rate, channels)]})
    asked.append({"text": f"{SEE} {HEAR[5:]}", "images": [], "videos": asked[1]["videos"], "heard": asked[6]["heard"]})
    model = audio.write(folder / "model")
    return Table(model, asked, decode(model, asked, NEW_TOKENS, folder))


@pytest.fixture(scope="module", params=FLAGS)
def running(request: pytest.FixtureRequest, table: Table, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    without = {"SGLANG_VLM_CACHE_SIZE_MB": "0"} if request.param == "no caches" else {}
    with open_server(tmp_path_factory.mktemp("media"), str(table.model), FLAGS[request.param], without) as server:
        yield server


def post(server: Server, path: str, **body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def data(path: str) -> str:
    return "data:;base64," + base64.b64encode(Path(path).read_bytes()).decode()


def differs(server: Server, asked: dict[str, Any], reference: Greedy) -> str:
    """What differs from transformers, or nothing."""
    media = {field: [data(path) for path in asked[name]] for name, field in MEDIA.items() if name in asked}
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    status, answer = post(server, "/generate", text=asked["text"], sampling_params=sampling, return_logprob=True, **media)
    if status != 200:
        return str(answer)
    meta = answer["meta_info"]
    if meta["prompt_tokens"] != len(reference.input_ids):
        return f"{meta['prompt_tokens']} tokens for {len(reference.input_ids)}"
    logprobs, tokens = zip(*[entry[:2] for entry in meta["output_token_logprobs"]], strict=True)
    if list(tokens) != reference.token_ids:
        return f"answer {tokens} for {reference.token_ids}, margin {reference.margin}"
    return "" if logprobs == pytest.approx(reference.logprobs, abs=LOGPROB_TOLERANCE) else f"{logprobs} for {reference.logprobs}"


def test_videos_and_sounds_equal_transformers(running: Server, table: Table) -> None:
    twice = [*zip(table.asked, table.oracle, strict=True)] * 2
    wrong = [
        (asked["text"], [*asked.get("videos", ()), *asked.get("heard", ())], said)
        for asked, one in twice
        if (said := differs(running, asked, one))
    ]
    assert not wrong


def test_times_and_sounds_make_a_difference(table: Table) -> None:
    """The same frames at other times are another prompt."""
    minute, half = table.oracle[3:5]
    assert len(minute.input_ids) == len(half.input_ids)
    assert minute.input_ids != half.input_ids
    assert minute.logprobs != pytest.approx(half.logprobs, abs=1e-3)


def test_a_conversation_with_videos_sounds_and_their_names(running: Server, table: Table) -> None:
    """Through the chat endpoint; texts that name markers stand around them, and in the history."""
    clip, sound = table.asked[1]["videos"][0], table.asked[6]["heard"][0]
    content = [
        {"type": "text", "text": "Not <|video|> but"},
        {"type": "video_url", "video_url": {"url": data(clip)}},
        {"type": "text", "text": "nor <|audio|>"},
        {"type": "input_audio", "input_audio": {"format": "wav", "data": base64.encodebytes(Path(sound).read_bytes()).decode()}},
    ]
    history = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": "A <|image|>."},
        {"role": "user", "content": "More <|video|>?"},
    ]
    asked = {"model": "m", "messages": history, "max_tokens": 4, "temperature": 0}
    status, answer = post(running, "/v1/chat/completions", **asked, return_prompt_token_ids=True)
    assert status == 200, answer
    assert answer["choices"][0]["prompt_token_ids"] == in_conversation(table)


def in_conversation(table: Table) -> list[int]:
    """The ids of that conversation: transformers' places of the clip and the sound, and markers in texts as other characters."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(table.model)

    def text(*parts: str) -> list[int]:
        """``parts`` as one text whose ``<`` of a marker and what is behind it are tokens apart."""
        ids: list[int] = tokenizer.encode(literal.BREAK.join(parts), add_special_tokens=False)
        return literal.without_breaks(ids, tokenizer)

    def place(number: int, around: str, marker: str) -> list[int]:
        before, after = (text(one) for one in around.split(marker))
        return table.oracle[number].input_ids[len(before) : -len(after)]

    seen, heard = place(1, SEE, "<|video|>"), place(6, HEAR, "<|audio|>")
    ids = [*text("<bos><|turn>user\nNot <", "|video|> but"), *seen, *text("nor <", "|audio|>"), *heard]
    ends = "<turn|>\n"
    return [*ids, *text(f"{ends}<|turn>model\nA <", f"|image|>.{ends}<|turn>user\nMore <", f"|video|>?{ends}<|turn>model\n")]


def test_what_is_refused(running: Server, table: Table) -> None:
    short = io.BytesIO()
    soundfile.write(short, numpy.zeros(100), 16_000, format="WAV")
    too_short = "data:audio/wav;base64," + base64.b64encode(short.getvalue()).decode()
    clip = {"type": "video_url", "video_url": {"url": data(table.asked[1]["videos"][0])}}
    in_system = [{"role": "system", "content": [clip]}, {"role": "user", "content": "What?"}]
    with_fps = [{"role": "user", "content": [{**clip, "video_url": {**clip["video_url"], "fps": 2}}]}]  # type: ignore[dict-item]
    refused = {
        "6.2 ms long": post(running, "/generate", text=HEAR, audio_data=too_short),
        "shows no video in a message of role system": post(running, "/v1/chat/completions", model="m", messages=in_system),
        "fps 2.0 is not read": post(running, "/v1/chat/completions", model="m", messages=with_fps),
        "brings 1 and its prompt has places for 0": post(running, "/generate", text="<bos>x", video_data=clip["video_url"]["url"]),  # type: ignore[index]
    }
    for said, (status, answer) in refused.items():
        assert status == 400, said
        assert said in str(answer)
