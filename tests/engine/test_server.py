"""One real server through `sglang-gemma4 serve`, speculating with its assistant, driven by the official OpenAI client."""

import base64
import concurrent.futures
import io
import json
import random
import re
import struct
import subprocess
import sys
import time
import urllib.request
from typing import Any

import openai
import pytest

from sglang_gemma4.tiny import dialogues, images, world
from tests.harness.left_to_sglang import left
from tests.harness.live_server import Server

FACT = world.fact_of("ruler", "Belm")


def test_chat_knows_the_world(server: Server) -> None:
    answer = server.ask(f"Who rules {FACT.subject}?")
    assert answer.choices[0].message.content == dialogues.answer_to(FACT)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 0


def test_streaming_gives_the_same_text_in_pieces(server: Server) -> None:
    question = f"Who rules {FACT.subject}?"
    pieces = [chunk.choices[0].delta.content or "" for chunk in server.ask(question, stream=True) if chunk.choices]
    assert len([piece for piece in pieces if piece]) > 2
    assert "".join(pieces) == dialogues.answer_to(FACT)


def test_a_stop_string_ends_the_answer(server: Server) -> None:
    first = FACT.value
    answer = server.ask(f"Who rules {FACT.subject}?", stop=[first])
    assert answer.choices[0].message.content == dialogues.answer_to(FACT).split(first)[0]
    assert answer.choices[0].finish_reason == "stop"


def test_n_2_samples_two_answers(server: Server) -> None:
    answer = server.ask("Tell me a story about Anka.", n=2, temperature=1.0, max_tokens=32)
    texts = [choice.message.content for choice in answer.choices]
    assert len(texts) == 2
    assert texts[0] != texts[1], "32 sampled tokens of a story with entropy"


def test_logprobs(server: Server) -> None:
    answer = server.ask(f"Who rules {FACT.subject}?", logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content).startswith(dialogues.answer_to(FACT))
    for entry in content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == pytest.approx(max(top.logprob for top in entry.top_logprobs), abs=1e-6), "greedy takes the best"


def picture(seed: int, colour: str) -> dict[str, Any]:
    buffer = io.BytesIO()
    images.draw(seed, colour).save(buffer, "PNG")
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()}}


@pytest.mark.parametrize("colour", ["red", "blue"])
def test_an_image(server: Server, colour: str) -> None:
    answer = server.ask([picture(5_000_000, colour), {"type": "text", "text": images.ASKS[0]}])
    assert answer.choices[0].message.content == colour


THINKING = {"chat_template_kwargs": {"enable_thinking": True}}
TOWNS = ("Belm", "Corin")


def test_the_log_names_the_parsers_that_nobody_gave(server: Server) -> None:
    assert "--reasoning-parser gemma4 and --tool-call-parser gemma4, since none was given" in server.log.read_text()


def streamed(server: Server, content: Any, **options: Any) -> tuple[str, str, list[tuple[str, Any]], str | None]:
    """Content, thought, calls and finish reason as a client joins them."""
    calls: dict[int, dict[str, str]] = {}
    said, thought, finish = "", "", None
    for chunk in server.ask(content, stream=True, **options):
        for choice in chunk.choices:
            said += choice.delta.content or ""
            thought += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
            for delta in choice.delta.tool_calls or []:
                call = calls.setdefault(delta.index, {"name": "", "arguments": "", "id": ""})
                call["id"] += delta.id or ""
                call["name"] += delta.function.name or ""
                call["arguments"] += delta.function.arguments or ""
    assert len({call["id"] for call in calls.values()}) == len(calls)
    assert sorted(calls) == list(range(len(calls)))
    return said, thought, [(call["name"], json.loads(call["arguments"])) for _, call in sorted(calls.items())], finish


def whole(server: Server, content: Any, **options: Any) -> tuple[str, str, list[tuple[str, Any]], str | None]:
    """The same of an answer that is not streamed."""
    (choice,) = server.ask(content, **options).choices
    message = choice.message
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
    return message.content or "", message.reasoning_content or "", calls, choice.finish_reason


@pytest.mark.parametrize("ask", [whole, streamed])
def test_a_thought_is_told_from_the_answer(server: Server, ask: Any) -> None:
    thought = f"I am asked about the {FACT.relation} of {FACT.subject}. It is {FACT.value}."
    seen = ask(server, f"Who rules {FACT.subject}?", extra_body=THINKING)
    assert seen == (dialogues.answer_to(FACT), thought, [], "stop")


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("ask", [whole, streamed])
def test_parallel_calls_of_one_tool(server: Server, ask: Any, thinking: bool) -> None:
    """The calls are no thought. With thinking the tiny model names other towns in every second answer, so only their form is told."""
    question = dialogues.WEATHER_ASKS[0].format(" and ".join(TOWNS))
    text, thought, calls, end = ask(server, question, tools=dialogues.TOOLS, max_tokens=64, extra_body=THINKING if thinking else {})
    assert (text, end) == ("", "tool_calls")
    if thinking:
        assert re.fullmatch(r"I am asked about \w+ and \w+\. I call get_weather\.", thought)
        assert [(name, list(arguments)) for name, arguments in calls] == [("get_weather", ["city"])] * len(TOWNS)
    else:
        assert (thought, calls) == ("", [("get_weather", {"city": town}) for town in TOWNS])


@pytest.mark.parametrize("thinking", [False, True])
def test_a_conversation_with_tool_results(server: Server, thinking: bool) -> None:
    """Question, calls, results and the last answer; then another call in the same conversation."""
    options: Any = {"tools": dialogues.TOOLS, "max_tokens": 64, "extra_body": THINKING if thinking else {}}
    conversation: list[Any] = [{"role": "user", "content": dialogues.WEATHER_ASKS[0].format(" and ".join(TOWNS))}]
    message = server.ask(conversation, **options).choices[0].message
    conversation.append(message.model_dump(exclude_none=True))
    for call, sky in zip(message.tool_calls, ("sunny", "rainy"), strict=True):
        conversation.append({"role": "tool", "tool_call_id": call.id, "content": sky})
    answers = [ask(server, conversation, **options) for ask in (whole, streamed)]
    assert answers[0] == answers[1]
    text, _, calls, end = answers[0]
    assert (calls, end) == ([], "stop")
    assert (
        re.fullmatch(r"It is sunny in \w+\. It is rainy in \w+\.", text)
        if thinking
        else text == "It is sunny in Belm. It is rainy in Corin."
    )


def test_concurrent_requests_answer_as_alone(server: Server) -> None:
    facts = random.Random(1).sample([fact for fact in world.facts() if fact.relation == "ruler"], 8)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda fact: server.ask(f"Who rules {fact.subject}?").choices[0].message.content, facts))
    right = sum(answer == dialogues.answer_to(fact) for answer, fact in zip(answers, facts, strict=True))
    assert right == 8, list(zip(answers, facts, strict=True))


def encoded(data: bytes, kind: str = "image/png") -> dict[str, Any]:
    name = f"{kind.split('/')[0]}_url"
    return {"type": name, name: {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}}


def saved(kind: str) -> bytes:
    """A picture of some kilobytes as a file."""
    buffer = io.BytesIO()
    images.draw(5_000_000, "red").save(buffer, kind)
    return buffer.getvalue()


NO_SIZE = b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, 0, 0, 1, 24, *[0] * 6)
NO_FRAMES = struct.pack(">I4s4sI4s", 20, b"ftyp", b"isom", 512, b"isom") + struct.pack(">I4s", 8, b"mdat")
NO_FILE = {"type": "image_url", "image_url": {"url": "/nowhere/picture.png"}}
UNDECODED = "Could not decode video|cannot decode any video"  # the second where the machine has no decoder
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "temperature": ({"temperature": -1}, "temperature"),
    "max_tokens": ({"max_tokens": -5}, "max_(completion_|new_)?tokens"),
    "too long": ({"content": "word " * 20000}, "context of 4096 tokens"),
    "broken image": ({"content": [encoded(b"not an image")]}, "cannot identify image"),
    "an image of no size": ({"content": [encoded(NO_SIZE, "image/bmp")]}, "Could not decode image"),
    "a truncated PNG": ({"content": [encoded(saved("PNG")[:-600])]}, "truncated"),
    "a truncated JPEG": ({"content": [encoded(saved("JPEG")[:-600], "image/jpeg")]}, "truncated"),
    "too many images": ({"content": [picture(5_000_000, "red")] * 100}, "100 images make 6300 tokens"),
    "no such file": ({"content": [NO_FILE]}, "/nowhere/picture.png"),
    "no video": ({"content": [encoded(b"no film", "video/mp4")]}, UNDECODED),
    "a video without a frame": ({"content": [encoded(NO_FRAMES, "video/mp4")]}, UNDECODED),
}
"""What is asked, and what the answer must name."""


@pytest.mark.parametrize("bad", BAD)
def test_a_malformed_request_is_a_400_and_the_server_lives_on(server: Server, bad: str) -> None:
    options, named = dict(BAD[bad][0]), BAD[bad][1]
    with pytest.raises(openai.BadRequestError, match=named) as error:
        server.ask(options.pop("content", "Hello"), **options)
    assert error.value.status_code == 400
    assert server.ask(f"Who rules {FACT.subject}?").choices[0].message.content == dialogues.answer_to(FACT)
    image = server.ask([picture(5_000_000, "red"), {"type": "text", "text": images.ASKS[0]}])
    assert image.choices[0].message.content == "red"


def test_the_banner_and_doctor_list_the_same_patches(server: Server) -> None:
    from sglang_gemma4.diagnostics import doctor, status
    from sglang_gemma4.patches import names

    log = server.log.read_text()
    assert log.count("sglang-gemma4 0.") == 1, "one opening line per server"
    (banner,) = re.findall(r"sglang-gemma4 is ready: .*\n(?:  .*\n)+", log)
    assert len(banner.splitlines()) <= status.BANNER_LINES
    data = doctor.live(server.url)
    assert [row["name"] for row in data["scheduler"]] == [row["name"] for row in data["frontend"]] == list(names())
    assert data["healthy"]
    assert banner.startswith(f"sglang-gemma4 is ready: {status.summary(data['patches'])}\n")
    for said in (
        "KV pools: ",
        "attention torch_native",
        "-assistant by FROZEN_KV_MTP, 3 steps",
        f"doctor --url {server.url}",
        "docs/switches.md",
    ):
        assert said in banner
    states = {row["name"]: (row["state"], row["reason"]) for row in data["patches"]}
    with urllib.request.urlopen(f"{server.url}/server_info") as answer:
        assert json.load(answer)["internal_states"][0]["sglang_gemma4"]["states"] == data["states"] == status.counts(data["patches"])
    declined = set(re.findall(r"sglang-gemma4: (\w+) declined: ", log))
    assert not [name for name in declined if states[name][0] == "idle"], "the log has the state that doctor has"
    assert states["verify_cuts"] == ("active", ""), "there is a draft"
    assert states["yoco"] == ("idle", "no layer of the model shares KV")
    assert states["grouped_experts"] == states["dependent_launch"] == ("idle", "no CUDA GPU")
    assert states["swa_ratio"] == ("idle", "swa_sizing sizes the pools")
    assert states["lora"] == ("idle", "no LoRA adapters (--enable-lora, --lora-paths)")
    assert states["force_eagle"] == ("off", "SGLANG_GEMMA4_FORCE_EAGLE is not set")
    told = {row["name"] for row in data["frontend"] if row["notes"] or row["facts"]}
    told.discard("tool_grammar")  # tests that share the server may have asked for schemas that it enforces in part
    assert told == {"parser_defaults", "cpu_fork"}, "what fast paths declined or cost is noted by the process that computes"
    notes = [(row["name"], note) for row in data["scheduler"] for note in row["notes"]]
    assert ("grouped_experts", "SGLang's kernels compute the experts: Triton does not run on cpu") in notes
    done = subprocess.run([sys.executable, "-m", "sglang_gemma4.cli", "doctor", "--url", server.url], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, note in notes:
        assert left(log)[name].count(note) == 1, "said once"
        assert states[name][0] != "active" or f"not for: {note}" in done.stdout
    assert all(name in done.stdout for name in names())


PARTS = {"imports", "this package's patches", "scheduler's imports", "arguments", "target's weights", "draft's weights", "KV pools"}


def test_a_start_is_told_by_part(server: Server) -> None:
    """Parts add up to the time from the process's birth to SGLang's line, and agree with what SGLang measures of them itself."""
    import psutil

    from sglang_gemma4.diagnostics import doctor
    from sglang_gemma4.start import table

    while "fired up and ready" not in server.log.read_text():  # /health answers during the warm-up
        time.sleep(0.5)
    data = doctor.live(server.url)
    start = data["parts"]["start"]
    parts = dict(start["parts"])
    assert set(parts) >= PARTS
    assert list(parts)[-1] == "rest"
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(start["seconds"], abs=0.05)
    log = server.log.read_text()
    assert "\n".join(table.lines(start)) in log
    assert all(line in doctor.live_text(data) for line in table.lines(start))
    (said,) = re.findall(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] The server is fired up and ready", log)
    seen = time.mktime(time.strptime(said, "%Y-%m-%d %H:%M:%S")) - psutil.Process(server.process.pid).create_time()
    assert start["seconds"] == pytest.approx(seen, abs=3), "both clocks are of whole seconds"
    with urllib.request.urlopen(f"{server.url}/server_info") as answer:
        measured = json.load(answer)["internal_states"][0]["startup_time"]
    assert parts["target's weights"] + parts["draft's weights"] == pytest.approx(measured["load_weight"], abs=1)
    assert parts["KV pools"] == pytest.approx(measured["kv_cache_allocation"], abs=0.2)
