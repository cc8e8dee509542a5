"""HTTP: OpenAI's, Anthropic's and Ollama's protocols, and their errors."""

from typing import Any


def replace_routes(_result: None, serving: Any, *_args: Any) -> None:
    """After ``OllamaServing.__init__``, which each HTTP process calls at its start: install our Ollama routes."""
    from sglang_gemma4.serving.protocols import serves_gemma4

    if not serves_gemma4(serving.tokenizer_manager):
        return
    from sglang.srt.entrypoints.http_server import app

    from sglang_gemma4.serving.ollama.routes import install

    install(app)
