"""--is-embedding starts with Gemma 4, and the first request ends the server. Needs no GPU."""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]


def main() -> int:
    """What an engine with the flag says."""
    seen = engines.ask(shipped.target("tiny-26b-a4b"), "embedding_server:encode", is_embedding=True)
    refused = isinstance(seen, str) and "PreflightError: --is-embedding" in seen
    return int(case.verdict("refused before weights are loaded", "refused before weights are loaded" if refused else seen))


def encode(engine: Any, _extra: None) -> int:
    """The client: how many numbers an embedding has."""
    from sglang.srt.managers.io_struct import EmbeddingReqInput

    request = EmbeddingReqInput(input_ids=[2, 300, 301])
    return len(engine.loop.run_until_complete(engine.tokenizer_manager.generate_request(request, None).__anext__())["embedding"])


if __name__ == "__main__":
    sys.exit(main())
