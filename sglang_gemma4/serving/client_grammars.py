"""Tries clients' grammars before a scheduler compiles them, and limits the memory of compiled grammars."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from typing import Any

from sglang_gemma4.serving.byte_cache import ByteCache
from sglang_gemma4.serving.grammar_trial import TrialError, Trials

FIELDS = {"json_schema": "json", "regex": "regex", "ebnf": "ebnf", "structural_tag": "structural_tag"}
"""Sampling parameters that hold a grammar, and the name of each in SGLang's grammar backends."""
_ANYTHING = "$$ANY$$"  # SGLang's sign for any JSON
COMPILED = 256 << 20
"""Bytes of compiled grammars that a scheduler keeps."""
_VERDICTS = 4 << 20


class GrammarJudge:
    """Tries each grammar once.

    Args:
        backend: SGLang's name of the grammar backend.
        options: the server's whitespace options for JSON.
    """

    def __init__(self, backend: str, options: Mapping[str, Any]) -> None:
        self._trials = Trials(backend)
        self._options = dict(options)
        self._verdicts: ByteCache[str] = ByteCache(_VERDICTS, lambda _, verdict: 200 + len(verdict))

    def prepare(self) -> None:
        """Start the trial process in a thread, with a trivial trial."""
        self._trials.threads.submit(self._trials.run, {"kind": "regex", "text": "a"})

    async def judge(self, parameters: Iterable[Any]) -> None:
        """Try the grammars of a request's sampling parameters, off the event loop.

        Raises:
            TrialError: one cannot be served; the message names the parameter and is for the client.
        """
        for field, text in dict.fromkeys(_grammars(parameters)):
            verdict = await asyncio.get_running_loop().run_in_executor(self._trials.threads, self._verdict, field, text)
            if verdict:
                raise TrialError(verdict)

    def _verdict(self, field: str, text: str) -> str:
        key = field, hashlib.sha256(text.encode(errors="surrogatepass")).digest()
        return self._verdicts.get(key, lambda: self._tried(field, text))

    def _tried(self, field: str, text: str) -> str:
        try:
            self._trials.run({"kind": FIELDS[field], "text": text, "options": self._options})
        except TrialError as error:
            return f"{field}: {text[:60]!r} {error}"
        return ""


def _grammars(parameters: Iterable[Any]) -> Iterable[tuple[str, str]]:
    for one in parameters:
        for field in FIELDS if isinstance(one, dict) else ():
            text = one.get(field)
            if text is None or (field == "json_schema" and text == _ANYTHING):
                continue
            if not isinstance(text, str):
                raise TrialError(f"{field}: {str(text)[:60]} is {type(text).__name__}; give a text")
            yield field, text


@cache
def converter() -> Trials:
    """The trials that convert JSON schemas to xgrammar's EBNF."""
    return Trials("xgrammar")


def keep_within(kept: dict[Any, Any], ages: OrderedDict[Any, int], key: Any, limit: int = COMPILED) -> None:
    """After ``kept[key]`` was set: drop the oldest compiled grammars until all are below ``limit`` bytes.

    Args:
        kept: SGLang's cache of compiled grammars by (kind, text).
        ages: bytes of each key's entry, oldest first; this function updates it on each call.
    """
    ages[key] = sum(len(part) for part in key if isinstance(part, str)) + _size(kept[key])
    ages.move_to_end(key)
    total = sum(ages.values())
    while total > limit and len(ages) > 1:
        oldest, size = ages.popitem(last=False)
        kept.pop(oldest, None)
        total -= size


def _size(grammar: Any) -> int:
    """Bytes of a compiled grammar as far as its backend tells, plus an estimate for the objects around it."""
    inner = getattr(grammar, "grammar", grammar)
    texts = (getattr(inner, "key_string", None), getattr(inner, "serialized_grammar", None), getattr(inner, "error_message", None))
    return 4096 + int(getattr(getattr(inner, "ctx", None), "memory_size_bytes", 0)) + sum(len(text) for text in texts if text)


async def try_first(original: Callable[..., Awaitable[Any]], manager: Any, request: Any) -> Any:
    """Around ``TokenizerManager._validate_and_resolve_lora``, which each request passes once before tokenisation: try its grammars.

    Raises:
        TrialError: a ValueError, which SGLang answers with status 400.
    """
    parameters = getattr(request, "sampling_params", None)
    judge = _judge(manager) if parameters else None
    if judge is not None:
        await judge.judge([parameters] if isinstance(parameters, dict) else parameters)
    return await original(manager, request)


def _judge(manager: Any) -> Any:
    """This process's ``GrammarJudge``; None for a grammar backend that it does not know."""
    if not hasattr(manager, "gemma4_grammars"):
        from sglang.srt.runtime_context import get_exec, get_serving

        from sglang_gemma4.serving.client_grammars import GrammarJudge

        backend, options = get_exec().kernel.grammar_backend, get_serving()
        whitespace = {
            "any_whitespace": not options.constrained_json_disable_any_whitespace,
            "max_whitespace_cnt": options.constrained_json_max_whitespace_cnt,
            "whitespace_pattern": options.constrained_json_whitespace_pattern,
        }
        known = backend in ("xgrammar", "llguidance", "outlines")
        manager.gemma4_grammars = GrammarJudge(backend, whitespace) if known else None
    return manager.gemma4_grammars


def prepare(_server_args: Any, manager: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``_setup_and_run_http_server``: start the trial process before the first grammar comes, since that takes a second."""
    judge = _judge(manager) if manager is not None else None
    if judge is not None:
        judge.prepare()


def bound_compiled(_result: None, backend: Any, key: Any, _value: Any) -> None:
    """After ``BaseGrammarBackend.set_cache``: keep the cache within ``COMPILED`` bytes."""
    if not hasattr(backend, "gemma4_ages"):
        backend.gemma4_ages = OrderedDict()
    keep_within(backend.cache, backend.gemma4_ages, key)


def forget_sizes(_result: None, backend: Any) -> None:
    """After ``BaseGrammarBackend.reset``, which empties the cache: forget the sizes."""
    getattr(backend, "gemma4_ages", {}).clear()


def bound_compiler(_result: None, backend: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``XGrammarGrammarBackend.__init__``: limit xgrammar's own cache, which has no limit by default."""
    from xgrammar import GrammarCompiler

    backend.grammar_compiler = GrammarCompiler(tokenizer_info=backend._tokenizer_info, cache_limit_bytes=COMPILED)
