"""A sound sent to a model without an audio tower ends the scheduler, and with it every other client's request. Needs no GPU.

Features of another length than their placeholders do the same, and where they are too many are cut in silence.
"""

import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

QUESTION = "<bos>Who is the ruler?"
EXPECTED = ["a sound: refused", "3 rows for 5 places: refused", "7 rows for 5 places: refused", "the bystander: the same answer"]


def main() -> int:
    """What becomes of each, and of a question asked before and behind them."""
    seen = engines.ask(shipped.target(), "audio_without_tower:ask", skip_tokenizer_init=False)
    return int(case.verdict(EXPECTED, seen))


def ask(engine: Any, _extra: None) -> list[str]:
    """The client."""
    before = answer(engine, prompt=QUESTION)
    hidden = engine.tokenizer_manager.model_config.hf_config.text_config.hidden_size
    found = [f"a sound: {outcome(engine, prompt='<bos>What is said <|audio|> here?', audio_data=sound())}"]
    for rows in (3, 7):
        found.append(f"{rows} rows for 5 places: {outcome(engine, **prepared(rows, hidden))}")
    same = answer(engine, prompt=QUESTION) == before
    return [*found, f"the bystander: {'the same answer' if same else 'another answer'}"]


def answer(engine: Any, **asked: Any) -> Any:
    """The output's tokens."""
    return engine.generate(**asked, sampling_params={"max_new_tokens": 4, "temperature": 0})["output_ids"]


def outcome(engine: Any, **asked: Any) -> str:
    """Whether a request is answered or refused."""
    try:
        return f"answered with {answer(engine, **asked)}"
    except ValueError:
        return "refused"


def sound() -> str:
    """A second of a tone, as a data: address."""
    import base64
    import io

    import numpy
    import soundfile  # type: ignore[import-untyped]

    written = io.BytesIO()
    soundfile.write(written, 0.2 * numpy.sin(numpy.arange(16_000) / 6), 16_000, format="WAV")
    return "data:audio/wav;base64," + base64.b64encode(written.getvalue()).decode()


def prepared(rows: int, hidden: int) -> dict[str, Any]:
    """A prompt with five places for an image, and embeddings of ``rows`` rows for them."""
    import torch

    feature = torch.ones(rows, hidden)
    return {"input_ids": [2, 5, 4, 4, 4, 4, 4, 6, 300], "image_data": [{"format": "precomputed_embedding", "feature": feature}]}


if __name__ == "__main__":
    sys.exit(main())
