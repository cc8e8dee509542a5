"""The int8 copy of a draft's or a target's head (``kernels/heads/narrow_scan.py``): where there is one, and that it follows updates."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.kernels.heads import narrow_head
from sglang_gemma4.kernels.heads.narrow_scan import NarrowHead
from sglang_gemma4.models.layers import draft_head

COPY = "_sglang_gemma4_narrow_head"
Say = Callable[[str], None]


def reason_against(model: Any, sharded: bool) -> str | None:
    """Why a model's head is read as it is, or None."""
    head = model.lm_head
    if reason := draft_head.reason_against_head(model.logits_processor, head, sharded):
        return reason
    return draft_head.reason_against_rows(head.weight[:1], head) or narrow_head.reason_against_head(head.weight)


def make(model: Any, sharded: bool) -> NarrowHead:
    """Copy what this rank scores of a model's head, and keep it beside the model: no buffer, which a release would save twice."""
    copy = NarrowHead.make(_scored(model, sharded))
    model.__dict__[COPY] = copy, sharded
    return copy


def give(model: Any, kind: type[Any], say: Say) -> bool:
    """Let a model's logits processor read its copy, where it is of a ``kind`` that takes tokens; else the copy is dropped. ``say`` is
    called where it is not read."""
    copy, _ = model.__dict__[COPY]
    head = model.logits_processor
    if not isinstance(head, kind):
        del model.__dict__[COPY]
        return False
    head.narrow, head.say_narrow = copy, say
    return True


def renewing(original: Callable[..., Any], kind: type[Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
    """Around each way in which a running server's weights change, however it ends: a copy that a logits processor of this ``kind`` reads
    follows them."""
    try:
        return original(updater, *args, **kwargs)
    finally:
        model = updater.get_model()
        if isinstance(getattr(model, "logits_processor", None), kind):
            renew(model)


def renew(model: Any) -> None:
    """Copy a model's head again, in place; one without a copy is left alone."""
    if COPY in vars(model):
        copy, sharded = vars(model)[COPY]
        copy.renew(_scored(model, sharded))


def _scored(model: Any, sharded: bool) -> Any:
    weight = model.lm_head.weight
    vocabulary = min(model.logits_processor.vocab_size, weight.shape[0])
    # One rank's kernel is given the whole weight, padding too.
    return weight[draft_head.my_range(vocabulary, sharded)] if draft_head.ranks(sharded) > 1 else weight
