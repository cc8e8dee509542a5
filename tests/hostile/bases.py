"""Requests that a server answers well, small ones: what the odd ones are made from."""

import copy
from typing import Any

MODEL = "tiny-26b-a4b"
ASK = "Who rules Belm?"
SAID = [{"role": "user", "content": ASK}]
FUNCTION = {
    "name": "weather",
    "description": "The weather of a town",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}, "required": ["town"]},
}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Belm"}'}}
TURNS = [
    {"role": "system", "content": "Be brief."},
    *SAID,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    {"role": "user", "content": [{"type": "text", "text": ASK}]},
]
CHAT = {"model": MODEL, "messages": SAID, "max_tokens": 3, "temperature": 0}
GENERATE = {"text": ASK, "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
QUESTION = {"id": "q", "type": "yes_no", "question": "Is it so?"}

BASES: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/chat/completions": (
        CHAT,
        {**CHAT, "tools": [TOOL], "tool_choice": "auto", "stream": True},
        {**CHAT, "tools": [TOOL], "tool_choice": "required"},
        {**CHAT, "messages": TURNS, "tools": [TOOL]},
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
        {**CHAT, "logprobs": True, "top_logprobs": 2, "stop": ["."], "n": 2, "temperature": 0.5},
        {**CHAT, "chat_template_kwargs": {"enable_thinking": True}, "stream": True, "stream_options": {"include_usage": True}},
    ),
    "/v1/completions": (
        {"model": MODEL, "prompt": ASK, "max_tokens": 3, "temperature": 0},
        {"model": MODEL, "prompt": [2, 300, 301, 302], "max_tokens": 3, "temperature": 0},
        {"model": MODEL, "prompt": [ASK, "Where is Corin?"], "max_tokens": 3, "logprobs": 2, "echo": True},
        {"model": MODEL, "prompt": [[2, 300], [2, 301, 302]], "max_tokens": 3, "n": 2, "stream": True},
    ),
    "/generate": (
        GENERATE,
        {**GENERATE, "stream": True, "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0},
        {"input_ids": [2, 300, 301, 302], "sampling_params": {"max_new_tokens": 3, "min_new_tokens": 1, "stop_token_ids": [1]}},
        {"input_ids": [[2, 300], [2, 301]], "sampling_params": [{"max_new_tokens": 2}, {"max_new_tokens": 3, "n": 1}]},
        {"text": [ASK, "Where?"], "sampling_params": {"max_new_tokens": 2, "regex": "[a-z]+"}, "token_ids_logprob": [[1, 2], [3]]},
        {**GENERATE, "return_logprob": True, "token_ids_logprob": [1, 2], "return_text_in_logprobs": True},
    ),
    "/v1/responses": (
        {"model": MODEL, "input": ASK, "max_output_tokens": 5},
        {"model": MODEL, "input": SAID, "instructions": "Be brief.", "max_output_tokens": 5, "stream": True, "store": False},
        {"model": MODEL, "input": ASK, "max_output_tokens": 5, "tools": [{"type": "function", **FUNCTION}], "reasoning": {"effort": "low"}},
    ),
    "/v1/messages": (
        {"model": MODEL, "messages": SAID, "max_tokens": 3},
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": [{"type": "text", "text": ASK}]}],
            "max_tokens": 3,
            "stream": True,
            "system": "Be brief.",
            "tools": [{"name": "weather", "description": "x", "input_schema": FUNCTION["parameters"]}],
            "tool_choice": {"type": "auto"},
        },
    ),
    "/v1/messages/count_tokens": ({"model": MODEL, "messages": SAID, "system": "x"},),
    "/api/chat": ({"model": MODEL, "messages": SAID, "stream": False, "options": {"num_predict": 3, "temperature": 0}},),
    "/api/generate": ({"model": MODEL, "prompt": ASK, "stream": False, "options": {"num_predict": 3, "top_k": 4}},),
    "/api/show": ({"model": MODEL},),
    "/v1/tokenize": ({"model": MODEL, "prompt": ASK}, {"model": MODEL, "messages": SAID, "tools": [TOOL]}, {"prompt": [ASK, "x"]}),
    "/v1/detokenize": ({"model": MODEL, "tokens": [2, 300]}, {"model": MODEL, "tokens": [[2, 300], [301]]}),
    "/v1/embeddings": ({"model": MODEL, "input": ASK}, {"model": MODEL, "input": [2, 300]}),
    "/encode": ({"text": ASK}, {"input_ids": [2, 300]}),
    "/classify": ({"text": ASK},),
    "/v1/classify": ({"model": MODEL, "input": ASK},),
    "/v1/score": ({"model": MODEL, "query": ASK, "items": ["yes", "no"], "label_token_ids": [300, 301], "apply_softmax": True},),
    "/v1/rerank": ({"query": ASK, "documents": ["a", "b"]},),
    "/v1/decisions": ({"model": MODEL, "input": ASK, "questions": [QUESTION]},),
    "/v1/systemone": ({"model": MODEL, "state": ASK, "questions": {"q": {"type": "noul", "instructions": "Is it so?"}}},),
    "/invocations": (CHAT,),
    "/vertex_generate": ({"instances": [{"text": ASK}], "parameters": {"sampling_params": {"max_new_tokens": 3}}},),
    "/parse_function_call": (
        {"text": '<|tool_call>call:weather{town:<|"|>Belm<|"|>}<tool_call|>', "tools": [TOOL], "tool_call_parser": "gemma4"},
    ),
    "/separate_reasoning": ({"text": "thought", "reasoning_parser": "gemma4"},),
}
GENERATING = ("/v1/chat/completions", "/v1/completions", "/generate", "/v1/responses", "/v1/messages")
"""Those that most requests go to."""


def base(path: str, position: int) -> dict[str, Any]:
    """A copy of one of the path's bodies."""
    return copy.deepcopy(BASES[path][position % len(BASES[path])])
