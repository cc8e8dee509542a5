"""Requests that are known to have ended, stalled or confused a server, ours or stock's, and their nearest relatives."""

from random import Random
from typing import Any

from tests.hostile.bases import ASK, CHAT, GENERATE, MODEL
from tests.hostile.exchange import Request, json_request

COMPLETION = {"model": MODEL, "prompt": ASK, "max_tokens": 3, "temperature": 0}
EMBEDDED = [[0.01 * n for n in range(128)]] * 5
VOCABULARY = 1024


def _chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {**CHAT, **fields}


def _completion(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {**COMPLETION, **fields}


def _generate(sampling: dict[str, Any] | None = None, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/generate", {**GENERATE, "sampling_params": {"max_new_tokens": 3, "temperature": 0, **(sampling or {})}, **fields}


SAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "ids above the vocabulary": _completion(prompt=[2, 5_000]),
    "id of the vocabulary's size": _completion(prompt=[2, VOCABULARY]),
    "id below 0": _completion(prompt=[2, -1]),
    "ids of a batch": _completion(prompt=[[2, 300], [2, 70_000]]),
    "input_ids above the vocabulary": ("/generate", {"input_ids": [2, 5_000], "sampling_params": {"max_new_tokens": 2}}),
    "input_ids of a batch": ("/generate", {"input_ids": [[2, 300], [2, -7]], "sampling_params": {"max_new_tokens": 2}}),
    "a batch of one": _completion(prompt=[[2, 300, 301]]),
    "embeddings": ("/generate", {"input_embeds": EMBEDDED, "sampling_params": {"max_new_tokens": 2}}),
    "embeddings of nan": ("/generate", {"input_embeds": [[float("nan")] * 128] * 3, "sampling_params": {"max_new_tokens": 2}}),
    "embeddings too narrow": ("/generate", {"input_embeds": [[0.1] * 5] * 3, "sampling_params": {"max_new_tokens": 2}}),
    "embeddings streamed": ("/generate", {"input_embeds": EMBEDDED, "stream": True, "sampling_params": {"max_new_tokens": 2, "n": 2}}),
    "prompt as long as the context": ("/generate", {"input_ids": [2] + [300] * 4_095, "sampling_params": {"max_new_tokens": 2}}),
    "prompt nearly as long": ("/generate", {"input_ids": [2] + [300] * 4_088, "sampling_params": {"max_new_tokens": 2}}),
    "prompt longer": _completion(prompt=[2] + [300] * 6_000),
    "top_k 2^31": _chat(top_k=2**31, temperature=1),
    "top_k in /generate": _generate({"top_k": 2**31, "temperature": 1}),
    "stop token above, min tokens": _chat(stop_token_ids=[5_000], min_tokens=2),
    "stop token below, min tokens": _chat(stop_token_ids=[-1], min_tokens=2),
    "min tokens above max": _chat(min_tokens=500),
    "top_logprobs above": _generate(return_logprob=True, top_logprobs_num=5_000),
    "logprobs above": _completion(logprobs=5_000),
    "logprobs of the vocabulary": _completion(logprobs=VOCABULARY + 1, echo=True),
    "top_logprobs of a chat": _chat(logprobs=True, top_logprobs=5_000),
    "token_ids_logprob above": _generate(return_logprob=True, token_ids_logprob=[5_000]),
    "token_ids_logprob below": _generate(return_logprob=True, token_ids_logprob=[-1]),
    "logprob_start_len below": _generate(return_logprob=True, logprob_start_len=-5),
    "logprob_start_len above": _generate(return_logprob=True, logprob_start_len=10**6),
    "custom labels": _generate(custom_labels={"x": "y"}),
    "n 10^6": _chat(n=10**6, temperature=1),
    "n 10^6 in /generate": _generate({"n": 10**6, "temperature": 1}),
    "n 60 of a batch": _completion(prompt=[ASK] * 20, n=60, temperature=1),
    "bias above": _chat(logit_bias={"5000": 5}),
    "bias below": _chat(logit_bias={"-1": 5}),
    "bias infinite": _chat(logit_bias={"300": float("-inf"), "301": 1e39}, temperature=1),
    "bias nan": _chat(logit_bias={"300": float("nan")}, temperature=1),
    "all biased away": _chat(logit_bias={str(token): -1e30 for token in range(VOCABULARY)}, temperature=1),
    "temperature tiny": _chat(temperature=1e-45, top_p=1e-45),
    "penalties": _chat(repetition_penalty=1e-30, frequency_penalty=2, presence_penalty=-2, temperature=1),
    "format a text": _chat(response_format="json"),
    "template's own arguments": _chat(chat_template_kwargs={"tokenize": True, "return_dict": 5, "messages": []}),
    "template of its own": _chat(chat_template_kwargs={"chat_template": "{% for n in range(10**9) %}x{% endfor %}"}),
    "tool true": _chat(tools=[{"type": "function", "function": {"name": "x", "parameters": True}}], tool_choice="required"),
    "left recursion": _chat(ebnf='root ::= root "a" | "b"'),
    "nothing is allowed": _chat(regex="[^\\x00-\\U0010ffff]", temperature=1),
    "adapter unknown": _chat(lora_path="no-such"),
    "adapters of a batch": _generate(lora_path=["a", None]),
    "session unknown": _generate(session_params={"id": "none", "rid": "none", "offset": -1}),
    "bootstrap": _generate(bootstrap_host="x", bootstrap_port=-1, bootstrap_room=-(2**70)),
    "data rank": _generate(routed_dp_rank=99, data_parallel_rank=-1),
    "logit processor": _generate(custom_logit_processor='{"callable": "80"}'),
    "hidden states": _generate(return_hidden_states=True),
    "routed experts": _generate(return_routed_experts=True, routed_experts_start_len=-3),
    "overrides": _generate(positional_embed_overrides={"embeds": [[1.0]], "positions": [10**9]}),
    "hashes": _generate(image_data=["x"], mm_hashes=["zz"], modalities=["smell"]),
    "pooling positions": _generate(token_indices_to_pool=[10**6], multi_item_delimiter_indices=[-5]),
    "waits for an encoder": _generate(need_wait_for_mm_inputs=True, num_items_assigned={"IMAGE": [5]}, encoder_urls=["http://127.0.0.1:1"]),
    "worker of its own": _generate(http_worker_ipc="ipc:///tmp/none"),
    "background": _generate(background=True),
    "same id twice": ("/generate", {"text": [ASK, ASK], "rid": ["a", "a"], "sampling_params": {"max_new_tokens": 2}}),
    "id of another": _generate(rid="bystander"),
    "priority": _chat(priority=2**70),
    "thinking budget": _generate(max_thinking_tokens=-5, require_reasoning=True),
    "stop of 2,000 texts": _chat(stop=[f"s{n}" for n in range(2_000)], max_tokens=8),
    "stop expression slow": _chat(stop_regex="(a|a)*$(b+)+c", max_tokens=8),
    "custom parameters": _chat(custom_params={"x": [[[]]], "__req__": 1}),
    "score above": ("/v1/score", {"model": MODEL, "query": ASK, "items": ["a"], "label_token_ids": [5_000]}),
    "score below": ("/v1/score", {"model": MODEL, "query": [2, -5], "items": [[300]], "label_token_ids": [-1]}),
    "detokenize": ("/v1/detokenize", {"model": MODEL, "tokens": [-1, 2**40, 5_000]}),
    "embeddings asked": ("/v1/embeddings", {"model": MODEL, "input": [[2, 5_000]]}),
    "1,000 turns": _chat(messages=[{"role": ("user", "assistant")[n % 2], "content": "a"} for n in range(999)]),
    "prompt of 2 MB": _completion(prompt="word " * 400_000),
    "200 prompts": _completion(prompt=["a"] * 200, max_tokens=1),
}


def sample(random: Random) -> Request:
    """One of them."""
    name = random.choice(list(SAMPLES))
    path, body = SAMPLES[name]
    return json_request(f"sample {name}", path, body)
