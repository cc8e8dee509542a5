"""What a client may write into a request's fields, and what may be asked of administrative routes: the server answers, and goes on.

The requests go to the server that all tests over HTTP share, while another client asks the same greedy question over and over.
"""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crash_repro import case
from sglang_gemma4.tiny import checkpoints
from tests.harness.checkpoints import text_only
from tests.harness.engine_fork import Group, Nursery
from tests.harness.live_server import Server

IDS = [2, 300, 301]
QUESTION = "Who rules Belm?"


def call(server: Server, path: str, body: Any, method: str = "POST", seconds: float = 60) -> tuple[int, str]:
    """Status and text of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextmanager
def bystander(server: Server) -> Iterator[None]:
    """A client that asks the same question meanwhile, and gets the same answer as without the others each time."""
    alone = server.ask(QUESTION, max_tokens=60).choices[0].message.content
    over, answers = threading.Event(), [""]

    def ask() -> None:
        while not over.is_set():
            answers.append(server.ask(QUESTION, max_tokens=60).choices[0].message.content)

    thread = threading.Thread(target=ask)
    thread.start()
    yield
    over.set()
    thread.join(300)
    assert not thread.is_alive()
    assert set(answers[1:]) == {alone}


def sampling(**given: Any) -> dict[str, Any]:
    return {"input_ids": IDS, "sampling_params": {"max_new_tokens": 4, **given}}


def chat(**given: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4, **given}


VALUES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"model": "tiny", "prompt": [2, 5000]}, "input_ids[1]: 5000 is not a token id from 0 to 1023"),
    ("/v1/completions", {"model": "tiny", "prompt": [[2, 300], [2, -1]]}, "input_ids[1][1]: -1"),
    ("/v1/completions", {"model": "tiny", "prompt": "Who", "logprobs": 5000, "echo": True}, "logprobs): 5000"),
    ("/v1/completions", {"model": "tiny", "prompt": ["Who"] * 1025, "max_tokens": 1}, "1025 sequences"),
    ("/v1/chat/completions", chat(top_logprobs=5000, logprobs=True), "(top_logprobs, logprobs): 5000"),
    ("/v1/chat/completions", chat(top_k=2**31), "top_k: 2147483648"),
    ("/v1/chat/completions", chat(n=1_000_000), "n: 1000000"),
    ("/v1/chat/completions", chat(stop_token_ids=[-1], min_tokens=2), "stop_token_ids[0]: -1"),
    ("/v1/chat/completions", chat(stop=["a" * 100_000]), "stop[0]: 'aaa"),
    ("/v1/chat/completions", chat(stop_regex="("), "stop_regex: '('"),
    ("/v1/chat/completions", chat(logit_bias={"5": 1e308}), "logit_bias[5]: 1e+308"),
    ("/v1/chat/completions", chat(logit_bias={"5": "NaN"}), "logit_bias[5]: nan"),
    ("/v1/completions", {"model": "tiny", "prompt": "Who", "logit_bias": {"5": "-inf"}}, "logit_bias[5]: -inf"),
    ("/generate", sampling(logit_bias={"5": float("nan")}), ""),  # no JSON
    ("/generate", sampling(stop_regex=["a", "[b"]), "stop_regex[1]: '[b'"),
    ("/v1/completions", {"model": "tiny", "prompt": "Who", "stop_regex": "*"}, "stop_regex: '*'"),
    ("/v1/chat/completions", chat(rid="HEALTH_CHECK_x"), "begins with HEALTH_CHECK"),
    ("/v1/messages", chat(top_k=2**31), "top_k: 2147483648"),
    ("/api/generate", {"model": "tiny", "prompt": "Who", "stream": False, "options": {"top_k": 2**31}}, "top_k: 2147483648"),
    ("/v1/score", {"model": "tiny", "query": [5000], "items": [[5001]], "label_token_ids": [5]}, "5000 is not a token id"),
    ("/detokenize", {"model": "tiny", "tokens": [5000, -1]}, "tokens[0]: 5000"),
    ("/v1/detokenize", {"model": "tiny", "tokens": [3, -1]}, "tokens[1]: -1"),
    ("/v1/detokenize", {"model": "tiny", "tokens": [[3], [4, -7]]}, "tokens[1]: -7"),
    ("/generate", {"input_ids": [[2], []]}, "input_ids[1]: the prompt is empty"),
    ("/generate", {"text": "a " * 1_000_000}, "longer than the context"),
    ("/generate", {**sampling(), "return_logprob": True, "top_logprobs_num": [3]}, "is a list"),
    ("/generate", {**sampling(), "return_logprob": True, "logprob_start_len": -5}, "logprob_start_len: -5"),
    ("/generate", {"input_ids": [IDS, IDS], "sampling_params": [{}]}, "a list of 1 entries"),
    ("/generate", {**sampling(), "custom_labels": {"a": "b"}}, "custom_labels: 'a'"),
    ("/generate", {**sampling(), "lora_id": ["a"]}, "lora_id: is no field of clients"),
    ("/generate", {**sampling(), "positional_embed_overrides": "a"}, "positional_embed_overrides: is no field of clients"),
    ("/generate", {**sampling(), "session_params": {"id": ["a"]}}, "session_params.id: ['a']"),
    ("/generate", {"input_embeds": [[0.5] * 3]}, "is not an embedding of 128 numbers"),
    ("/v1/embeddings", {"model": "tiny", "input": "a"}, "this server generates text"),
    ("/encode", {"text": "a"}, "this server generates text"),
    ("/classify", {"text": "a"}, "this server generates text"),
    ("/v1/rerank", {"model": "tiny", "query": "a", "documents": ["b"]}, "this server generates text"),
]


def test_values_outside_their_limits(server: Server) -> None:
    with bystander(server):
        for path, body, said in VALUES:
            status, text = call(server, path, body)
            assert (status, said in text) == (400, True), f"{path} {str(body)[:200]}: {status} {text[:500]}"


def test_many_samples_of_one_prompt(server: Server) -> None:
    with bystander(server):
        status, text = call(server, "/v1/chat/completions", chat(n=40, max_tokens=2, ignore_eos=True), seconds=300)
    assert (status, len(json.loads(text)["choices"])) == (200, 40)


def test_placeholders_of_media_sent_as_ids(server: Server) -> None:
    """They are tokens of the vocabulary, and nothing brings features for them."""
    config = json.loads((checkpoints.SHIPPED / "tiny-26b-a4b" / "config.json").read_text())
    tokens = [config[name] for name in ("image_token_id", "video_token_id", "audio_token_id") if config.get(name) is not None]
    with bystander(server):
        status, _ = call(server, "/generate", {"input_ids": [2, *tokens * 3, 300], "sampling_params": {"max_new_tokens": 4}})
    assert status in (200, 400)


def test_a_pattern_that_backtracks_ends_its_own_request(server: Server) -> None:
    with bystander(server):
        for pattern in ("(?s)(.*.*.*.*.*.*.*.*)*#", "(.+)+#"):
            status, text = call(server, "/v1/chat/completions", chat(stop_regex=pattern, max_tokens=200, ignore_eos=True))
            assert (status, "stop_regex" in text, "took more than" in text) == (400, True, True), text


def test_a_turn_that_replaces_a_session(server: Server) -> None:
    status, opened = call(server, "/open_session", {"capacity_of_str_len": 1000, "session_id": "replaced"})
    assert (status, json.loads(opened)) == (200, "replaced")
    turn = {"input_ids": IDS, "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    for again in (False, True, True):
        status, text = call(server, "/generate", {**turn, "session_params": {"id": "replaced", "replace": again}})
        assert (status, json.loads(text)["meta_info"]["prompt_tokens"]) == (200, len(IDS))
    assert call(server, "/close_session", {"session_id": "replaced"})[0] == 200


ROUTES: list[tuple[str, Any, str]] = [
    ("/start_expert_distribution_record", None, "--expert-distribution-recorder-mode"),
    ("/stop_expert_distribution_record", None, "--expert-distribution-recorder-mode"),
    ("/dump_expert_distribution_record", None, "--expert-distribution-recorder-mode"),
    ("/slow_down", {"forward_sleep_time": 1e300}, "1e+300 s are more than 60 s"),
    ("/release_memory_occupation", {}, "--enable-memory-saver"),
    ("/resume_memory_occupation", {}, "--enable-memory-saver"),
    ("/start_profile", {"output_dir": "/proc/none"}, "cannot be made"),
    ("/start_profile", {"activities": ["RPD"]}, "rpdTracerControl"),
    ("/stop_profile", None, "not in progress"),
    ("/configure_logging", {"log_requests": True, "log_requests_level": 99}, "log_requests_level: 99"),
    ("/configure_logging", {"log_level": "loud"}, "log_level: 'loud'"),
    ("/send_weights_to_remote_instance", {"master_address": "127.0.0.1", "ports": "1"}, "KeyError"),
    ("/update_weights_from_disk", {"model_path": "/nowhere", "load_format": "none"}, "not a valid LoadFormat"),
    ("/update_weights_from_tensor", {"serialized_named_tensors": ["aGVsbG8="]}, "begin_weight_update"),
    ("/init_weights_update_group", {"master_address": "127.0.0.1", "master_port": 0, "rank_offset": 1, "world_size": 2}, "master_port"),
]


def test_administrative_routes_answer(server: Server) -> None:
    with bystander(server):
        for path, body, said in ROUTES:
            status, text = call(server, path, body)
            assert (status, said in text) == (400, True), f"{path}: {status} {text[:500]}"


def test_the_server_tells_no_key_and_the_doctor_that_it_is_not_open(server: Server) -> None:
    from sglang_gemma4.diagnostics import doctor

    data = doctor.live(server.url)
    assert data["open"] is None, "127.0.0.1"
    assert "WARNING" not in doctor.live_text(data)
    assert "WARNING whoever reaches" in doctor.live_text({**data, "open": "whoever reaches"})


def test_embeddings_and_single_positions_of_a_text_only_checkpoint(nursery: Nursery, tmp_path: Path) -> None:
    """In chunks and beside prompts of ids, in one batch; the multimodal model is that of ``crash_repro/input_embeds.py``."""
    import torch

    model = case.text_model()
    with torch.inference_mode():
        embeddings = [model.get_input_embeddings()(torch.tensor(prompt)).tolist() for prompt in case.PROMPTS]
    expected = case.greedy(model, 8)
    group = Group([IDS], client="generate:embeddings", extra={"embeddings": embeddings, "ids": case.PROMPTS})
    engine: dict[str, Any] = {"disable_radix_cache": True, "skip_tokenizer_init": True, "chunked_prefill_size": 32}
    (outputs,) = nursery.run(text_only.save(model, tmp_path), [group], **engine)
    assert [output.token_ids for output in outputs] == [*expected, expected[0], expected[1], expected[0]]
