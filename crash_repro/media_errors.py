"""An image file that is not there is answered with status 500, as if the server had failed. Needs no GPU."""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]


def main() -> int:
    """The status of a chat completion with such an image, and of one behind it."""
    seen = engines.ask(shipped.target(), "media_errors:statuses", skip_tokenizer_init=False)
    return int(case.verdict([400, 200], seen))


def statuses(engine: Any, _extra: None) -> list[int]:
    """The client: through the OpenAI endpoint's own code, in the engine's process."""
    import json

    from tests.harness.engine_clients import language_model_only_client

    picture = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "/nowhere/none.png"}}]
    messages = [[{"role": "user", "content": content}] for content in (picture, "Who is the ruler?")]
    found = language_model_only_client.chat(engine, {"extra": {"messages": messages}})
    answers = [json.loads(one["text"]) for one in found]
    print(answers, flush=True)
    return [status for status, _ in answers]


if __name__ == "__main__":
    sys.exit(main())
