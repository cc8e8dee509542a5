"""A raw text is read behind one <bos>, as Gemma 4 was trained; a text that begins with <bos> gets no second one."""

from typing import Any


def begin_texts(tokenizer: Any) -> str | None:
    """Make ``tokenizer`` put one <bos> in front of each text that it encodes with special tokens; chat templates write their own.

    SGLang does so for a Gemma tokenizer that it loads for a text-only model, but not for one that comes with a processor. There is one
    way for both, and for a text that begins with <bos> already: it is the one that counts.

    Returns:
        Why texts are left as they are, or None.
    """
    bos = tokenizer.bos_token
    if not bos or not hasattr(tokenizer, "update_post_processor"):
        return f"{type(tokenizer).__name__} has no <bos> to put in front of a raw text; write it into the text"
    tokenizer._add_bos_token = True
    tokenizer.update_post_processor()
    encode = tokenizer._encode_plus

    def encoded(text: Any = None, text_pair: Any = None, add_special_tokens: bool = True, **given: Any) -> Any:
        if add_special_tokens:
            text = without_bos(text, bos)
        return encode(text, text_pair, add_special_tokens=add_special_tokens, **given)

    tokenizer._encode_plus = encoded
    return None


def without_bos(text: Any, bos: str) -> Any:
    """``text``, a string or a list of them, without a leading ``bos``; a pair or a list of words as it is."""
    if isinstance(text, list | tuple):
        return [without_bos(one, bos) if isinstance(one, str) else one for one in text]
    return text.removeprefix(bos) if isinstance(text, str) else text
