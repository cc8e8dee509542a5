"""Tries a client's grammar in a separate process: compiles it for a small vocabulary, and generates some tokens with it.

The vocabulary is the 256 bytes, plus tokens that can only be named by number. A grammar's cost grows more slowly than the vocabulary: one
that is cheap for bytes takes tens of times as long for a released vocabulary, not a thousand times.
"""

import contextlib
import gc
import json
import os
import random
import re
import resource
import signal
import socket
from collections.abc import Mapping
from functools import cache
from typing import Any

from sglang_gemma4.serving import schema_ends
from sglang_gemma4.serving.printed_grammar import dead_end, without_end

STEPS = 512
"""Tokens that a trial generates. Some grammars, such as ``root ::= root root | "a"``, take longer with each token."""
_BYTES = 256
_VOCABULARY = 262_144  # a grammar may name a token by its number
_KEPT = 200  # characters kept of each end of an error


def prepare(backend: str) -> None:
    """Import and create what trials need, before the process is forked that forks the trials."""
    with contextlib.suppress(ImportError):
        _BACKENDS[backend]({})
        attempt({"kind": "convert", "text": '{"type": "string", "pattern": "a", "format": "date"}'})


def serve(control: socket.socket, seconds: float, memory: int, real_seconds: float) -> None:
    """Fork a process for each socket that comes over ``control``; exit when ``control`` is closed."""
    _close_all_but(control.fileno())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no one needs their exit status
    gc.freeze()
    while True:
        said, files, *_ = socket.recv_fds(control, 1, 1)
        if not said:
            os._exit(0)
        if os.fork() == 0:
            with contextlib.suppress(BaseException):
                control.close()
                _one(socket.socket(fileno=files[0]), seconds, memory, real_seconds)
            os._exit(0)
        os.close(files[0])


def _close_all_but(kept: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, kept):
            with contextlib.suppress(OSError):
                os.close(int(name))


def _one(asked: socket.socket, seconds: float, memory: int, real_seconds: float) -> None:
    job = json.loads(b"".join(iter(lambda: asked.recv(1 << 16), b"")))
    with open("/proc/self/statm") as pages:
        size = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, size + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, real_seconds)  # the signals end this process
    signal.setitimer(signal.ITIMER_PROF, seconds)
    asked.sendall(json.dumps(attempt(job)).encode())


def attempt(job: Mapping[str, Any]) -> dict[str, Any]:
    """Try a grammar.

    Args:
        job: ``backend``, SGLang's name; ``kind`` ("json", "regex", "ebnf", "structural_tag"; "convert": a JSON schema to convert to
            xgrammar's EBNF), ``text``, and ``options`` of the backend or the conversion.

    Returns:
        ``grammar``, the EBNF of a conversion; ``refused``, what is wrong; or an empty dict.
    """
    try:
        if reason := _never_ends(job):
            raise ValueError(reason)
        if job["kind"] == "convert":
            return {"grammar": _converted(job)}
        grammar = getattr(_BACKENDS[job["backend"]](job.get("options", {})), f"dispatch_{job['kind']}")(job["text"])
        if hasattr(grammar, "error_message"):
            raise ValueError(grammar.error_message)
        if job["backend"] == "xgrammar":
            _check_printed(str(grammar.ctx.grammar), job["kind"] == "json")
        if job["backend"] != "outlines":
            _follow(grammar)
    except MemoryError:
        os._exit(1)
    except Exception as error:
        if "bad_alloc" in str(error):
            os._exit(1)
        return {"refused": _said(_contradiction(job) or error)}
    return {}


def _said(error: Exception) -> str:
    """An error's text without the place in a library's source; only its two ends if it is long."""
    text = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error).strip()) or type(error).__name__
    return f"is refused: {text if len(text) < 2 * _KEPT else f'{text[:_KEPT]} ... {text[-_KEPT:]}'}"


def _contradiction(job: Mapping[str, Any]) -> Exception | None:
    """The contradiction in the schemas of a refused job, with its place; None if none is found."""
    try:
        return ValueError(reason) if (reason := _never_ends(job, contradictions=True)) else None
    except RecursionError:
        return None


def _never_ends(job: Mapping[str, Any], contradictions: bool = False) -> str | None:
    """Why answers of a job's schemas may go on without end; None if they end, or if the job's text has no schemas."""
    if job["kind"] not in ("json", "convert", "structural_tag"):
        return None
    try:
        found = json.loads(job["text"])
    except ValueError:
        return None
    of = schema_ends.reason_against_tag if job["kind"] == "structural_tag" else schema_ends.reason_against
    return of(found, contradictions)


def _check_printed(grammar: str, of_schema: bool) -> None:
    """Check a grammar as xgrammar prints it. A client's own grammar may be endless; one made of a schema may not.

    Raises:
        ValueError: the grammar has a dead end or, if made of a schema, may never end.
    """
    if (rule := dead_end(grammar)) not in (None, "root"):
        raise ValueError(f"texts that have come to the rule {rule} cannot go on, since nothing begins it")
    if of_schema and (rule := without_end(grammar)) is not None:
        raise ValueError(f"texts that have come to the rule {rule} go on without end")


def _converted(job: Mapping[str, Any]) -> str:
    import xgrammar
    from sglang.srt.constrained.json_schema_validation import validate_xgrammar_json_schema

    validate_xgrammar_json_schema(json.loads(job["text"]))  # as for JSON answers without a thought
    grammar = str(xgrammar.Grammar.from_json_schema(job["text"], **job.get("options", {})))
    _check_printed(grammar, True)
    return grammar


def _follow(grammar: Any) -> None:
    """Generate with ``grammar``: half of the tokens at random, and half repeat the previous token where it is allowed.

    Raises:
        ValueError: no text is allowed.
    """
    mask = grammar.allocate_vocab_mask(_VOCABULARY, 1, "cpu")
    fresh, chosen, last = grammar, random.Random(0), -1
    for step in range(STEPS):
        if step in (0, STEPS // 2):
            grammar = fresh.copy()
        grammar.fill_vocab_mask(mask, 0)
        allowed = _allowed(mask)
        if not allowed and not step:
            raise ValueError("it allows no text")
        going_on = [token for token in allowed if token != _BYTES]
        if not going_on:
            grammar = fresh.copy()
            continue
        last = last if step > STEPS // 2 and last in going_on else chosen.choice(going_on)
        grammar.accept_token(last)


def _allowed(mask: Any) -> list[int]:
    """The bytes and the end token that ``mask`` allows; if it allows none of these, the other tokens that it allows."""
    return _set_bits(mask[0][: _BYTES // 32 + 1].tolist()) or _set_bits(mask[0].tolist())


def _set_bits(words: list[int]) -> list[int]:
    return [32 * place + bit for place, word in enumerate(words) if word for bit in range(32) if word >> bit & 1]


@cache
def _xgrammar_tokens() -> Any:
    import xgrammar

    # The other tokens can only be named by number: they are not UTF-8, so no text has them, and one look excludes them all.
    named = [b"\xff\xff%d" % number for number in range(_BYTES + 1, _VOCABULARY)]
    vocabulary = [*(bytes([number]) for number in range(_BYTES)), b"<eos>", *named]
    return xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, vocab_size=_VOCABULARY, stop_token_ids=[_BYTES])


# SGLang's backends for the trial vocabulary, made without their constructors, which need a tokenizer.


def _xgrammar(options: Mapping[str, Any]) -> Any:
    import xgrammar
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend

    backend = XGrammarGrammarBackend.__new__(XGrammarGrammarBackend)
    backend.grammar_compiler = xgrammar.GrammarCompiler(_xgrammar_tokens(), max_threads=1, cache_enabled=False)
    backend.vocab_size, backend.override_stop_tokens = _VOCABULARY, None
    backend.any_whitespace, backend.max_whitespace_cnt = options.get("any_whitespace", True), options.get("max_whitespace_cnt")
    return backend


def _llguidance(options: Mapping[str, Any]) -> Any:
    from llguidance import LLTokenizer
    from sglang.srt.constrained.llguidance_backend import GuidanceBackend

    backend = GuidanceBackend.__new__(GuidanceBackend)
    backend.llguidance_tokenizer = LLTokenizer("byte")
    backend.any_whitespace, backend.whitespace_pattern = options.get("any_whitespace", True), options.get("whitespace_pattern")
    return backend


def _outlines(options: Mapping[str, Any]) -> Any:
    from sglang.srt.constrained.outlines_backend import OutlinesGrammarBackend

    backend = OutlinesGrammarBackend.__new__(OutlinesGrammarBackend)
    backend.outlines_tokenizer, backend.whitespace_pattern = _Characters(), options.get("whitespace_pattern")
    return backend


class _Characters:
    """A vocabulary for outlines: the ASCII characters."""

    vocabulary = {chr(number): number for number in range(128)} | {"<eos>": 128}
    eos_token, eos_token_id, special_tokens = "<eos>", 128, {"<eos>"}

    def convert_token_to_string(self, token: str) -> str:
        return token

    def __hash__(self) -> int:
        return hash(id(self))


_BACKENDS = {"xgrammar": _xgrammar, "llguidance": _llguidance, "outlines": _outlines}
