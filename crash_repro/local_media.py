"""Any file that the server can read is read as an image when a client names it, and the error tells which files exist. Needs no GPU."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

EXPECTED = {"an image of the server's": 400, "one below a named folder": 200, "errors differ": False}


def main() -> int:
    """The status of a chat completion with the server's own file; and whether two errors tell a file that is there from one that is not."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name).resolve() / each for each in ("private", "named")]
        for folder in folders:
            folder.mkdir()
            shipped.draw(folder)
        extra = [str(folder) for folder in folders]
        os.environ["SGLANG_GEMMA4_LOCAL_MEDIA"] = extra[1]
        seen = engines.ask(shipped.target(), "local_media:ask", extra, skip_tokenizer_init=False)
    return int(case.verdict(EXPECTED, seen))


def ask(engine: Any, extra: list[str]) -> dict[str, Any]:
    """The client: through the OpenAI endpoint's own code, in the engine's process."""
    import json

    from tests.harness.engine_clients import language_model_only_client

    private, named = extra
    there, absent = f"file://{private}/picture.png", f"file://{private}/another.png"
    addresses = (there, absent, f"file://{private}/../private/picture.png", f"{named}/picture.png")
    messages = [[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": address}}]}] for address in addresses]
    found = [json.loads(one["text"]) for one in language_model_only_client.chat(engine, {"extra": {"messages": messages}})]
    print(found, flush=True)
    refused = [body.replace(address, "") for (_, body), address in zip(found, (there, absent), strict=False)]
    return {"an image of the server's": found[2][0], "one below a named folder": found[3][0], "errors differ": refused[0] != refused[1]}


if __name__ == "__main__":
    sys.exit(main())
