"""A client's grammar that takes too long, too much memory or crashes is a 400; compiled ones are bounded."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from sglang_gemma4.patching import Hook, Patch

BACKEND = "sglang.srt.constrained.base_grammar_backend.BaseGrammarBackend"


async def try_first(original: Callable[..., Awaitable[Any]], manager: Any, request: Any) -> Any:
    """Around ``TokenizerManager._validate_and_resolve_lora``, which each request passes once, before it is tokenised.

    Raises:
        TrialError: a ValueError, which SGLang answers with status 400.
    """
    parameters = getattr(request, "sampling_params", None)
    judge = _judge(manager) if parameters else None
    if judge is not None:
        await judge.judge([parameters] if isinstance(parameters, dict) else parameters)
    return await original(manager, request)


def _judge(manager: Any) -> Any:
    """The process's judge of grammars; None where the server has none."""
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
    """Before ``_setup_and_run_http_server``: what tries grammars is there before the first comes, since it takes a second."""
    judge = _judge(manager) if manager is not None else None
    if judge is not None:
        judge.prepare()


def bound_compiled(_result: None, backend: Any, key: Any, _value: Any) -> None:
    """After ``BaseGrammarBackend.set_cache``."""
    from sglang_gemma4.serving.client_grammars import keep_within

    if not hasattr(backend, "gemma4_ages"):
        backend.gemma4_ages = OrderedDict()
    keep_within(backend.cache, backend.gemma4_ages, key)


def forget_sizes(_result: None, backend: Any) -> None:
    """After ``BaseGrammarBackend.reset``."""
    getattr(backend, "gemma4_ages", {}).clear()


def bound_compiler(_result: None, backend: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``XGrammarGrammarBackend.__init__``: xgrammar's own cache keeps everything unless it is told how much."""
    from xgrammar import GrammarCompiler

    from sglang_gemma4.serving.client_grammars import COMPILED

    backend.grammar_compiler = GrammarCompiler(tokenizer_info=backend._tokenizer_info, cache_limit_bytes=COMPILED)


PATCH = Patch(
    switch="SGLANG_GEMMA4_REQUEST_CHECKS",
    why="A grammar of a few kB takes stock's scheduler minutes and gigabytes to compile (a JSON schema nested 1,000 deep, '.*' 1,000 "
    "times), or some 100 ms for each token of its answer, for which all other requests wait; one with a rule that nothing begins leaves "
    "an answer without a next token. All that was ever compiled is kept.",
    evidence="srt/constrained/base_grammar_backend.py:267 (cache), xgrammar_backend.py:257 (cache_limit_bytes) · "
    "crash_repro/client_grammars.py · tests/unit/test_client_grammars.py",
    remove_when="SGLang compiles clients' grammars within a limit of time and memory, and bounds its caches.",
    hooks=(
        Hook("sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_and_resolve_lora", "around", try_first, "2fab5ee4bb63"),
        Hook("sglang.srt.entrypoints.http_server._setup_and_run_http_server", "before", prepare, "7b68d6a8a809"),
        Hook(f"{BACKEND}.set_cache", "after", bound_compiled, "e3e22883a394"),
        Hook(f"{BACKEND}.reset", "after", forget_sizes, "272675363e87"),
        Hook("sglang.srt.constrained.xgrammar_backend.XGrammarGrammarBackend.__init__", "after", bound_compiler, "0286ace54428"),
    ),
)
