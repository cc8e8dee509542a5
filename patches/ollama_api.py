"""Ollama's endpoints answer as the chat does: whole streams, counts, tools, thoughts, images, schemas; the rest is a 400."""

from typing import Any

from sglang_gemma4.patching import Hook, Patch


def replace_routes(_result: None, serving: Any, *_args: Any) -> None:
    """After ``OllamaServing.__init__``, which each process that answers HTTP calls as it starts."""
    from sglang_gemma4.serving.protocols import serves_gemma4

    if not serves_gemma4(serving.tokenizer_manager):
        return
    from sglang.srt.entrypoints.http_server import app

    from sglang_gemma4.serving.ollama.routes import install

    install(app)


PATCH = Patch(
    switch="SGLANG_GEMMA4_REQUEST_CHECKS",
    why="Stock's Ollama endpoints drop the last step's text of a stream, answer seed, num_predict -1 and top_k 0 with status 500, always "
    "end with 'stop', give a stream no counts, refuse a call's message without content, and ignore format, tools, think and images.",
    evidence="srt/entrypoints/ollama/serving.py:55, 150-158, 267-275 · crash_repro/ollama_answers.py",
    remove_when="SGLang's Ollama endpoints answer through OpenAIServingChat and refuse by name what they do not serve.",
    hooks=(Hook("sglang.srt.entrypoints.ollama.serving.OllamaServing.__init__", "after", replace_routes, "cc588b3ff0ae"),),
)
