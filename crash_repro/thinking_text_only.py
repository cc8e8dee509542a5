"""A text-only checkpoint thinks, and its server takes the markers out before the parser sees them. Needs no GPU."""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

FAMILY = "tiny-31b"


def text_only(folder: Path) -> Path:
    """The language model of a trained tiny checkpoint as a checkpoint of its own."""
    from transformers import Gemma4ForCausalLM

    whole = shipped.load(FAMILY)
    model = Gemma4ForCausalLM(whole.config.text_config)
    model.model = whole.model.language_model
    model.tie_weights()
    path: Path = case.save(model, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(shipped.target(FAMILY) / name, path)
    return path


def ask(engine: Any, question: str) -> Any:
    """Thought and text that a chat completion returns."""
    import httpx
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

    async def post() -> Any:
        app.state.openai_serving_chat = OpenAIServingChat(engine.tokenizer_manager, engine.template_manager)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://engine", timeout=120) as client:
            body = {"model": "tiny", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 60}
            body["chat_template_kwargs"] = {"enable_thinking": True}
            return (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]

    message = engine.loop.run_until_complete(post())
    return [message["reasoning_content"], message["content"]]


def main() -> int:
    """One question that the model thinks about."""
    from sglang_gemma4.tiny import dialogues, world

    fact = world.fact_of("ruler", "Belm")
    expected = [f"I am asked about the {fact.relation} of {fact.subject}. It is {fact.value}.", dialogues.answer_to(fact)]
    with tempfile.TemporaryDirectory() as folder:
        model, question = text_only(Path(folder)), f"Who rules {fact.subject}?"
        seen = engines.ask(model, "thinking_text_only:ask", question, skip_tokenizer_init=False, reasoning_parser="gemma4")
    return int(case.verdict(expected, seen))


if __name__ == "__main__":
    sys.exit(main())
