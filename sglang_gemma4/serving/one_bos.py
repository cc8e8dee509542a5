"""Gives a raw text exactly one leading <bos>, as in Gemma 4's training; a text that begins with <bos> gets no second one."""

from typing import Any


def begin_texts(tokenizer: Any) -> str | None:
    """Make ``tokenizer`` put one <bos> in front of each text that it encodes with special tokens; chat templates write their own.

    SGLang does so for a Gemma tokenizer that it loads for a text-only model, but not for one that comes with a processor. This treats both
    the same, and a leading <bos> of the text itself is the one that counts.

    Returns:
        Why texts are left as they are, or None.
    """
    bos = tokenizer.bos_token
    if not bos or not hasattr(tokenizer, "update_post_processor"):
        return f"{type(tokenizer).__name__} has no <bos> to put in front of a raw text; write it into the text"
    tokenizer._add_bos_token = True
    tokenizer.update_post_processor()
    tokenizer._encode_plus = OneBos(tokenizer)
    return None


class OneBos:
    """Replaces a tokenizer's ``_encode_plus``.

    SGLang copies the processor for each thread that processes media. A copy or pickle of the tokenizer gets its own ``OneBos``; a closure
    would stay shared.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, text: Any = None, text_pair: Any = None, add_special_tokens: bool = True, **given: Any) -> Any:
        if add_special_tokens and not given.get("is_split_into_words"):
            text = without_bos(text, self.tokenizer.bos_token)
        return type(self.tokenizer)._encode_plus(self.tokenizer, text, text_pair, add_special_tokens=add_special_tokens, **given)


def reuses_ids(server: Any, processed: Any, is_multimodal: bool) -> bool:
    """Whether a chat without media can go to the engine as the ids that its template gave.

    For a tokenizer that adds <bos>, SGLang tokenises the rendered text again, on the event loop. Here both give the same ids.

    Args:
        server: SGLang's ``OpenAIServingChat``; the conditions are those of its ``_can_reuse_text_only_prompt_ids``.
    """
    return (
        is_multimodal
        and server.chat_encoding_spec is None
        and server.template_manager.chat_template_name is None
        and not server._prompt_text_round_trip_is_lossy
        and isinstance(processed.prompt_ids, list)
        and bool(processed.prompt_ids)
        and not (processed.image_data or processed.video_data or processed.audio_data or processed.modalities)
    )


def without_bos(text: Any, bos: str) -> Any:
    """``text``, a string or a list of strings, without leading ``bos``; a pair inside a list is unchanged."""
    if isinstance(text, list | tuple):
        return [without_bos(one, bos) if isinstance(one, str) else one for one in text]
    return text.removeprefix(bos) if isinstance(text, str) else text
