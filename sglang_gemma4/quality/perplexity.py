"""Perplexity of a text through SGLang's native /generate: windows of tokens, each token scored once."""

import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from sglang_gemma4.quality import interrupt, results
from sglang_gemma4.quality.asking import about
from sglang_gemma4.quality.endpoint import Endpoint

BOS = "<bos>"


@dataclass(frozen=True)
class Window:
    """Text tokens [first, last) of one request; those from ``scored`` on are scored, the others are context."""

    first: int
    scored: int
    last: int


def windows(tokens: int, window: int, stride: int) -> Iterator[Window]:
    """Windows of at most ``window`` tokens, ``stride`` apart, that score each of ``tokens`` tokens once.

    Raises:
        ValueError: not 1 <= stride <= window.
    """
    if not 1 <= stride <= window:
        raise ValueError(f"--stride {stride} does not fit --window {window}; it must be from 1 to the window, or tokens would be left out")
    done = 0
    for first in range(0, max(tokens, 1), stride):
        last = min(first + window, tokens)
        yield Window(first, done, last)
        done = last
        if last == tokens:
            return


def evaluate(endpoint: Endpoint, out: Path, file: Path, *, model: str | None, window: int, stride: int, concurrency: int) -> results.Record:
    """Score ``file`` (UTF-8) and return the summary; one row per window goes to ``out``.

    Raises:
        ValueError: the file is absent, not UTF-8, empty or shorter than two tokens; a window does not fit the model.
        KeyboardInterrupt: SIGINT came; see :func:`interrupt.ending`.
    """
    name, context = endpoint.model(model)
    text = read_text(file)
    prefix, ids = _tokenise(endpoint, text)
    if len(ids) < 2:
        raise ValueError(f"{file} holds {len(ids)} token; perplexity needs at least 2, so give a longer text")
    if not 1 <= window + len(prefix) < context:
        raise ValueError(
            f"--window {window} does not fit the model's context of {context} tokens; give at most {context - 1 - len(prefix)}"
        )
    plan = list(windows(len(ids), window, stride))
    sha = hashlib.sha256(text.encode()).hexdigest()
    header = {
        "eval": "text",
        "questions": len(plan),
        "dataset": {"name": file.name, "why": "given", "sha256": sha, "tokens": len(ids), "window": window, "stride": stride},
        "evaluator": {"name": "sglang /generate", "version": "input_token_logprobs", "prefix": prefix},
        "concurrency": concurrency,
        **about(endpoint, name),
    }
    done = results.start(out, header)
    todo = [(f"window-{number}", w) for number, w in enumerate(plan) if f"window-{number}" not in done]
    stopped = threading.Event()

    def score(item: tuple[str, Window]) -> results.Record:
        if stopped.is_set():
            raise ValueError("interrupted")
        window_name, w = item
        return _row(window_name, endpoint, prefix, ids[w.first : w.last], w.scored - w.first)

    with interrupt.ending(stopped.set), ThreadPoolExecutor(concurrency) as pool:
        try:
            for row in tqdm(pool.map(score, todo), "text", len(todo)):
                results.append(out, row)
        except ValueError:
            pool.shutdown(cancel_futures=True)
            raise
    summary = summarise(results.load(out).rows)
    results.append(out, {"kind": "summary", **summary})
    return summary


def read_text(file: Path) -> str:
    if not file.is_file():
        raise ValueError(f"{file} is not a file; give a UTF-8 text")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 ({error}); convert it first") from None
    if not text.strip():
        raise ValueError(f"{file} is empty; give a text of at least two tokens")
    return text


def _tokenise(endpoint: Endpoint, text: str) -> tuple[list[int], list[int]]:
    """(special tokens before a text, the text's tokens). Every window begins with the special tokens: for Gemma one <bos>.

    The released tokenizers add no <bos> to a text by themselves, so it is added here.
    """

    def tokens(prompt: str, special: bool) -> list[int]:
        found: list[int] = endpoint.post("/tokenize", {"prompt": prompt, "add_special_tokens": special})["tokens"]
        return found

    ids, whole, bos = tokens(text, False), tokens(text, True), tokens(BOS, False)
    if len(bos) == 1:
        return bos, ids[1:] if ids[:1] == bos else ids
    prefix = whole[: len(whole) - len(ids)]
    if whole != prefix + ids:
        raise ValueError("the tokenizer puts special tokens elsewhere than before the text; only a prefix is supported")
    return prefix, ids


def _row(name: str, endpoint: Endpoint, prefix: Sequence[int], ids: Sequence[int], context: int) -> results.Record:
    """One window; ``context`` of its tokens are not scored."""
    body = {
        "input_ids": [*prefix, *ids],
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    given: list[Any] = endpoint.post("/generate", body)["meta_info"]["input_token_logprobs"][len(prefix) :]
    if [token for _, token, _ in given] != list(ids):
        raise ValueError(f"{name}: the server gives log-probabilities of other tokens than were sent")
    values = [value for value, _, _ in given]
    # The first token has no log-probability if there is no special token before it.
    scored = [None if position < context or (position == 0 and not prefix) else value for position, value in enumerate(values)]
    if any(value is None or not math.isfinite(value) for value in scored[max(context, int(not prefix)) :]):
        raise ValueError(f"{name}: the server gives a log-probability that is not a finite number")
    return {
        "kind": "row",
        "id": name,
        "hash": hashlib.sha256(str(body["input_ids"]).encode()).hexdigest()[:16],
        "token_ids": list(ids),
        "logprobs": [None if value is None else round(value, 6) for value in scored],
    }


def summarise(rows: Sequence[results.Record]) -> results.Record:
    """Tokens scored, cross-entropy and perplexity."""
    values = [value for row in rows for value in row["logprobs"] if value is not None]
    nats = -math.fsum(values) / len(values)
    return {"windows": len(rows), "tokens": len(values), "nats_per_token": nats, "perplexity": math.exp(nats)}
