"""What a client wrote wrongly is a 400 that names the cause; long bodies and prompts do not stop the event loop."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch

OPENAI = "sglang.srt.entrypoints.openai"
CHAT = f"{OPENAI}.serving_chat.OpenAIServingChat"
ANTHROPIC = "sglang.srt.entrypoints.anthropic.serving.AnthropicServing"
SERVER = "sglang.srt.entrypoints.http_server"
MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
READING = "sglang_gemma4.serving.client_errors"
ERRORS = "sglang_gemma4.serving.http_errors"
THREADS = "sglang_gemma4.serving.off_loop"


def answer_errors(*_args: Any, **_kwargs: Any) -> None:
    """Before ``_setup_and_run_http_server``, and after ``init_multi_tokenizer`` in each further process."""
    from sglang.srt.entrypoints.http_server import app

    from sglang_gemma4.serving.http_errors import install

    install(app)


def after_start(result: Any, *_args: Any, **_kwargs: Any) -> Any:
    """After ``init_multi_tokenizer``."""
    answer_errors()
    return result


def mark_sent(*_args: Any, **_kwargs: Any) -> None:
    """Before a request, or a batch of them, is sent to a scheduler."""
    from sglang_gemma4.serving import client_errors

    client_errors.mark_sent()


def without_schemas(original: Callable[..., Any], server: Any, request: Any) -> Any:
    """Around ``OpenAIServingChat._validate_request``, on the event loop: tools' schemas are judged by :func:`judged_chat`, in a thread.

    ``jsonschema`` takes a second for 100 kB of schemas.
    """
    functions = [tool.function for tool in server._effective_tools(request)]
    schemas = [function.parameters for function in functions]
    try:
        for function in functions:
            function.parameters = None
        return original(server, request)
    finally:
        for function, schema in zip(functions, schemas, strict=True):
            function.parameters = schema


def judged_chat(original: Callable[..., Any], server: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``OpenAIServingChat._process_messages``.

    Raises:
        ClientError: a ValueError, which all chat endpoints answer with status 400.
    """
    from sglang.srt.function_call.utils import normalize_json_schema_types

    from sglang_gemma4.serving import chat_checks, prompt_length
    from sglang_gemma4.serving.client_errors import ClientError, reading

    tools, manager = server._effective_tools(request), server.tokenizer_manager
    for tool in tools:
        reading(normalize_json_schema_types, tool.function.parameters)
    if reason := chat_checks.reason_against(tools, request.chat_template_kwargs):
        raise ClientError(reason)
    if not manager.allow_auto_truncate and manager.tokenizer is not None:
        prompt_length.check(prompt_length.of_messages(request.messages), manager.tokenizer, manager.context_len)
    return reading(original, server, request, *args, **kwargs)


PATCH = Patch(
    switch="SGLANG_GEMMA4_REQUEST_CHECKS",
    why="Stock answers with status 500 a response_format that is a text, tools whose parameters are true, template arguments that it gives "
    "itself and bodies nested 500 deep, and stops the event loop for seconds over long schemas, prompts and bodies.",
    evidence="srt/entrypoints/openai/serving_base.py:148 · serving_chat.py:1171 (check_schema) · "
    "srt/managers/tokenizer_manager.py:1057 (encode on the loop) · crash_repro/client_errors.py",
    remove_when="SGLang answers what a client wrote wrongly with status 400, and tokenises off the event loop.",
    hooks=(
        Hook(f"{SERVER}._setup_and_run_http_server", "before", answer_errors, "7b68d6a8a809"),
        Hook(f"{SERVER}.init_multi_tokenizer", "after", after_start, "a7d13b1dfc1d"),
        Hook(f"{SERVER}.ORJSONRequest.json", "around", f"{ERRORS}:judged_body", "e2c5d0ed98fb"),
        Hook(f"{OPENAI}.serving_base.OpenAIServingBase.create_error_response", "around", f"{ERRORS}:error_response", "69d7cdfd6df0"),
        Hook(f"{CHAT}._validate_request", "around", without_schemas, "8d78750212e0"),
        Hook(f"{CHAT}._process_messages", "around", judged_chat, "80c3dd483728"),
        Hook(f"{CHAT}._convert_to_internal_request", "around", f"{READING}:reading", "f30c2af44acf"),
        *(
            Hook(f"sglang.srt.managers.io_struct.{name}.normalize_batch_and_arguments", "around", f"{READING}:reading", declared)
            for name, declared in (("GenerateReqInput", "747f81a7ac99"), ("EmbeddingReqInput", "2b7c7ff75e3b"))
        ),
        Hook(f"{MANAGER}._tokenize_one_request", "around", f"{READING}:reading_async", "5f726c05bb27"),
        Hook(f"{MANAGER}._batch_tokenize_and_process", "around", f"{READING}:reading_async", "3c2594d38461"),
        Hook(f"{MANAGER}._tokenize_texts", "around", f"{THREADS}:tokenized", "9d841c1eefd9"),
        Hook(f"{MANAGER}._send_one_request", "before", mark_sent, "c6e29fe9df7f"),
        Hook(f"{MANAGER}._send_batch_request", "before", mark_sent, "1ecdbac41d90"),
        Hook(f"{OPENAI}.serving_responses.OpenAIServingResponses._make_request", "around", f"{THREADS}:threaded", "e464fa5afacc"),
        *(
            Hook(f"{OPENAI}.serving_tokenize.{name}._handle_non_streaming_request", "around", f"{THREADS}:threaded", declared)
            for name, declared in (("OpenAIServingTokenize", "130f2e343475"), ("OpenAIServingDetokenize", "28527ce2f5bc"))
        ),
        Hook(f"{ANTHROPIC}.handle_messages", "around", f"{THREADS}:messages", "71ae50286b66"),
        Hook(f"{ANTHROPIC}.handle_count_tokens", "around", f"{THREADS}:threaded", "6b32db4f50f5"),
    ),
)
