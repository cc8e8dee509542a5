"""From the target's logits to accepted tokens."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_gemma4.patching import decline, note, switches, tell
from sglang_gemma4.speculative.workers import SHARDED


def softmax() -> Callable[..., Any]:
    """The softmax under the name by which ``eagle_sample`` calls it."""
    from sglang.kernels.ops.sampling import softmax as stock

    from sglang_gemma4.speculative import verify_cuts

    return verify_cuts.cut_softmax(stock)


def give_head(_result: None, worker: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``alloc_memory_pool`` of the draft's worker: before anything is captured."""
    from sglang_gemma4.models.layers import verify_head

    say, say_so = (partial(each, "verify_argmax") for each in (note, tell))
    verify_head.install(worker.target_worker.model_runner.model, say, say_so, sharded=switches.is_on(SHARDED))


def walk() -> Callable[..., Any]:
    """The walk down the tree of drafts, under the name by which ``eagle_sample`` calls it."""
    from sglang.srt.speculative import eagle_utils

    from sglang_gemma4.speculative import verify_tokens

    return verify_tokens.with_tokens(eagle_utils.verify_tree_greedy_func)


NAME = "narrow_verify_head"

SWITCH = "SGLANG_GEMMA4_VERIFY_ARGMAX"


def make_copy(_result: None, worker: Any, *_args: Any, **_kwargs: Any) -> None:
    """After the draft's worker is made: the target's weights are loaded, and SGLang has not yet sized its KV pools by what is free."""
    if not switches.part_is_on("verify_argmax", SWITCH):
        decline(NAME, "verify_argmax is left out, and verify steps compute logits")
        return
    from sglang_gemma4.models.layers import narrow_copy, verify_head

    model, sharded = worker.target_worker.model_runner.model, switches.is_on(SHARDED)
    if reason := verify_head.problem_with(model, sharded) or narrow_copy.reason_against(model, sharded):
        decline(NAME, reason)
        return
    copy = narrow_copy.make(model, sharded)
    tokens, width = copy.levels.shape
    tell(NAME, f"the int8 copy of the target's head, {tokens:,} tokens x {width:,}, takes {copy.bytes / 2**20:,.1f} MiB of the card")


def give_copy(_result: None, worker: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``alloc_memory_pool``, and after verify_argmax's hook there: before anything is captured."""
    from sglang_gemma4.models.layers import narrow_copy, verify_head

    model = worker.target_worker.model_runner.model
    if narrow_copy.COPY in vars(model) and not narrow_copy.give(model, verify_head.VerifyHead, partial(note, NAME)):
        decline(NAME, "verify_argmax gave the target no head of ours (see its own line)")


def renew_copy(original: Callable[..., Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
    """Around each way in which a running server's weights change."""
    from sglang_gemma4.models.layers import narrow_copy, verify_head

    return narrow_copy.renewing(original, verify_head.VerifyHead, updater, *args, **kwargs)
