"""What a client wrote wrongly is answered with status 500, and a regex of 1 kB is compiled however long it takes. Needs no GPU."""

import asyncio
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

PATIENCE = 25.0
"""Seconds after which the answer is that there was none."""
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
REQUESTS: dict[str, dict[str, Any]] = {
    "template arguments that the server gives": {"chat_template_kwargs": {"messages": []}},
    "a tool whose parameters are true": {"tools": [{"type": "function", "function": {"name": "f", "parameters": True}}]},
    "a regex that takes seconds to compile for a thousand tokens": {"regex": "(a*)+" * 200},
    "a grammar that comes to where nothing follows": {"ebnf": 'root ::= "a" x\nx ::= x "b"'},
    "a tool": {"tools": [TOOL]},
    "a regex": {"regex": "[a-z]{3}"},
}
EXPECTED = {name: 200 if name in ("a tool", "a regex") else 400 for name in REQUESTS}


def main() -> int:
    """The status of a chat completion with each."""
    seen = engines.ask(shipped.target(), "client_errors:statuses", skip_tokenizer_init=False)
    return int(case.verdict(EXPECTED, seen))


def statuses(engine: Any, _extra: None) -> dict[str, int | str]:
    """The client: through the OpenAI endpoint's own code, in the engine's process."""
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

    from sglang_gemma4.serving.client_errors import STAGE, Stage

    serving = OpenAIServingChat(engine.tokenizer_manager, engine.template_manager)

    async def ask(options: dict[str, Any]) -> int | str:
        STAGE.set(Stage())  # as where an HTTP body is read
        messages = [{"role": "user", "content": "Who is the ruler?"}]
        request = ChatCompletionRequest(model="tiny", messages=messages, max_tokens=4, temperature=0, **options)
        try:
            answer = await asyncio.wait_for(serving.handle_request(request, None), PATIENCE)
        except TimeoutError:
            return f"none within {PATIENCE:.0f} s"
        print(getattr(answer, "body", b""), flush=True)
        return int(getattr(answer, "status_code", 200))

    return {name: engine.loop.run_until_complete(ask(options)) for name, options in REQUESTS.items()}


if __name__ == "__main__":
    sys.exit(main())
