"""Hooks that make constrained answers end: consecutive blanks in JSON are limited, and a marker is never text of a string."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import tell
from sglang_gemma4.patching.switches import WITHOUT

BOUND, TEXT, WHERE = "gemma4_blanks", "gemma4_text_tokens", "gemma4_text_where"


def choose(result: Any, server_args: Any, tokenizer: Any, *_args: Any, **_kwargs: Any) -> Any:
    """After ``create_grammar_backend``: add the limits. Outlines already allows only one blank by default."""
    from sglang.srt.arg_groups.model_override_base import model_config_of

    from sglang_gemma4.models.config_files import named_gemma4

    if result is not None and named_gemma4(model_config_of(server_args).hf_config):
        bound(inner := getattr(result, "grammar_backend", result))  # a reasoning parser's backend has another inside
        keep_special_tokens_out(inner, tokenizer)
    return result


def keep_special_tokens_out(backend: Any, tokenizer: Any) -> None:
    """Keep special tokens from matching text in grammars that ``backend`` compiles. Only xgrammar needs this."""
    from sglang_gemma4.serving.text_tokens import TextTokens, special_tokens

    if hasattr(backend, "grammar_compiler") and hasattr(tokenizer, "all_special_ids"):
        info, words = backend._tokenizer_info, -(-backend.vocab_size // 32)
        special = {token for token in special_tokens(tokenizer) if token < backend.vocab_size}
        setattr(backend, TEXT, TextTokens(info.decoded_vocab, special, set(info.stop_token_ids), words))


def bound(backend: Any) -> None:
    """Limit consecutive blanks in grammars that ``backend`` compiles; the operator's own limit stays in force."""
    from sglang.srt.runtime_context import get_serving

    from sglang_gemma4.serving.blank_bound import BLANKS, BlankBound, pattern

    most = get_serving().constrained_json_max_whitespace_cnt or BLANKS
    if hasattr(backend, "grammar_compiler"):
        setattr(backend, BOUND, BlankBound(backend._tokenizer_info.decoded_vocab, most, -(-backend.vocab_size // 32)))
    elif hasattr(backend, "whitespace_pattern") and hasattr(backend, "any_whitespace") and backend.whitespace_pattern is None:
        backend.whitespace_pattern = pattern(most) if backend.any_whitespace else None
    else:
        return
    tell(
        "json_blanks",
        f"JSON answers have at most {most} blanks in a row outside strings; --constrained-json-max-whitespace-cnt sets another bound, "
        f"and {WITHOUT}=json_blanks leaves them to SGLang",
    )


def remember(result: Any, backend: Any, ctx: Any, key_string: str, grammar_stats: Any) -> Any:
    """After ``XGrammarGrammarBackend._from_context``: store the limits with the compiled grammar, which all its copies share."""
    from sglang_gemma4.serving.text_tokens import SIGN

    kind = grammar_stats.dispatch_type
    if kind in ("json", "structural_tag"):
        setattr(ctx, BOUND, getattr(backend, BOUND, None))
    where = "everywhere" if kind == "json" else "strings" if kind == "structural_tag" and SIGN.strip() in key_string else "nowhere"
    setattr(ctx, TEXT, getattr(backend, TEXT, None))
    setattr(ctx, WHERE, where)
    return result


def mask_tokens(_result: None, grammar: Any, vocab_mask: Any, idx: int) -> None:
    """After ``XGrammarGrammar.fill_vocab_mask``: apply the limits to row ``idx`` of the mask."""
    blanks, text = getattr(grammar.ctx, BOUND, None), getattr(grammar.ctx, TEXT, None)
    if blanks is not None:
        blanks.apply(vocab_mask[idx].numpy(), grammar.accepted_tokens)
    if text is not None:
        text.apply(vocab_mask[idx].numpy(), getattr(grammar.ctx, WHERE), grammar.accepted_tokens)


def guide_tags(original: Callable[..., Any], backend: Any, key_string: str) -> Any:
    """Around ``GuidanceBackend.dispatch_structural_tag``: add the server's whitespace options, which stock leaves out."""
    from sglang_gemma4.serving.blank_bound import guided_tag

    pattern = backend.whitespace_pattern
    return original(backend, key_string if pattern is None else guided_tag(key_string, pattern, backend.any_whitespace))
