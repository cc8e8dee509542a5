"""The largest request that this server's KV pools can serve, and what a client is told whose request is larger.

A request of n prompt and m answer tokens is served where all of these hold:

- ``n + m + page < full pool``: SGLang admits no other (``PrefillAdder.add_one_req``), since a request may take a page more than its tokens.
- ``n + m - 2 + reserve <= full pool`` under MTP: before the last step n + m - 2 tokens are committed, and each step allocates ``reserve``
  tokens beyond them (``allocation_sizing.get_alloc_reserve_per_decode``).
- without chunked prefill the sliding pool holds n in whole pages at once (``pool_end.admit_whole``; SGLang asks for more than a page more).
- on the decode server of a pair, n in whole pages leave ``--num-reserved-decode-tokens`` free, and m fits into the sliding pool beside a
  window (``DecodePreallocQueue``); with pages of one token both pools hold the whole prompt.

Stock checks the first with the prompt in whole pages and never says that a prompt cannot fit: it gives such a request no answer, or lets it
wait for ever (``mem_cache/allocator/base.py:88``). Unified memory counts bytes itself; it lacks what MTP allocates.
"""

import bisect
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang_gemma4.models.config_files import named_gemma4

logger = logging.getLogger(__name__)
STOCK_REFUSAL = "Request prompt exceeds the KV memory budget"
"""How ``Scheduler.init_req_max_new_tokens`` begins what it says where the pool answers None."""
SPARED = 5
"""Tokens that SGLang leaves for the answer where it truncates a prompt (``tp_worker.py:572``)."""


@dataclass(frozen=True)
class Pools:
    """What bounds a request, in tokens."""

    full: int
    page: int
    reserve: int = 0  # that a step allocates beyond the committed ones; 0 without speculation
    sliding: int | None = None  # the pool that holds a whole prompt; None where prefill is chunked or one pool serves all layers
    spared: int = 0  # that a prompt leaves free
    answers: int | None = None  # that an answer has at most; None: as many as the prompt leaves

    @property
    def most(self) -> int:
        """Prompt and answer tokens of the largest request."""
        admitted = self.full - self.page - 1
        return min(admitted, self.full + 2 - self.reserve) if self.reserve else admitted

    @property
    def most_prompt(self) -> int:
        """Prompt tokens of the largest request that gets a token of answer."""
        most = [self.most - 1]
        if self.sliding is not None:
            most.append(self._pages(self.sliding))
        if self.spared:
            most.append(self._pages(self.full - self.spared))
        return 0 if self.answers == 0 else max(0, min(most))

    def answer(self, prompt: int, wanted: int) -> int | None:
        """Tokens of answer, ``wanted`` at most, for a prompt; None where there is no room for the first one."""
        if prompt > self.most_prompt:
            return None
        return min(wanted, self.most - prompt, wanted if self.answers is None else self.answers)

    def _pages(self, tokens: int) -> int:
        return tokens // self.page * self.page


def most_new_tokens(
    original: Callable[..., int | None], allocator: Any, input_tokens: int, max_new_tokens: int, *, token_capacity: int, **given: Any
) -> int | None:
    """Around ``BaseTokenToKVPoolAllocator.max_new_tokens_for_memory``: exactly what fits, None where the prompt does not."""
    if not _gemma4():
        return original(allocator, input_tokens, max_new_tokens, token_capacity=token_capacity, **given)
    return pools_of(allocator, token_capacity, given["chunk_size"], given["sliding_window_size"]).answer(input_tokens, max_new_tokens)


def pools_of(allocator: Any, capacity: int, chunk: int | None, window: int | None) -> Pools:
    """What bounds a request of this server: its pools, how it prefills and decodes, and its part in a pair.

    Args:
        capacity: tokens of the full pool.
    """
    from sglang.srt.runtime_context import get_disagg

    sliding, page = getattr(allocator, "size_swa", None), allocator.page_size
    if get_disagg().disaggregation_mode == "decode" and sliding is not None:
        return _decode_server(capacity, sliding, page, window or 0)
    return Pools(capacity, page, _reserve(), sliding if not chunk or chunk <= 0 else None)


def _decode_server(capacity: int, sliding: int, page: int, window: int) -> Pools:
    from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS
    from sglang.srt.runtime_context import get_disagg

    spared = int(get_disagg().num_reserved_decode_tokens)
    if page == 1:
        return Pools(min(capacity, sliding), page, _reserve(), spared=spared)
    answers = max(0, sliding - max(window, page) - 2 * page)
    return Pools(capacity, page, _reserve(), spared=spared, answers=answers if answers < CLIP_MAX_NEW_TOKENS else None)


def most_new_tokens_of_both(
    original: Callable[..., int | None], allocator: Any, input_tokens: int, max_new_tokens: int, **given: Any
) -> int | None:
    """The same around the allocator of unified memory, which counts the bytes of both kinds of layers itself."""
    if not _gemma4():
        return original(allocator, input_tokens, max_new_tokens, **given)
    reserve = _reserve()
    found = original(allocator, input_tokens, max(1, max_new_tokens) + reserve, **given)
    if found is None or found - reserve < 1:
        return None
    return min(max_new_tokens, found - reserve)


def _reserve() -> int:
    """Tokens that a step of speculative decoding allocates beyond the committed ones; 0 where this server does not decode so."""
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
    from sglang.srt.runtime_context import get_disagg, get_spec

    if get_spec().speculative_algorithm is None or get_disagg().disaggregation_mode == "prefill":
        return 0
    return int(get_alloc_reserve_per_decode())


@functools.cache
def _gemma4() -> bool:
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.runtime_context import get_server_args

    return named_gemma4(model_config_of(get_server_args()).hf_config)


def refusal(prompt: int, most: int, arguments: Any) -> str:
    """What a client is told whose prompt is longer than ``most`` tokens.

    Args:
        arguments: SGLang's ``ServerArgs``, of which those are named that would make room.
    """
    held = f"the KV pools of this server hold a prompt of at most {most} tokens and its answer"
    return f"The prompt has {prompt} tokens, and {held}. {remedies(arguments)}"


def no_room(prompt: int, arguments: Any) -> str:
    """The same where the pools hold the prompt, and not the first chunk of it that this server's flags ask for."""
    held = "the sliding KV pool of this server has no room for its first chunk, though nothing else runs"
    return f"The prompt has {prompt} tokens, and {held}. {remedies(arguments)}"


def remedies(arguments: Any) -> str:
    """What a client and an operator can do."""
    larger = f"--max-total-tokens (it is {arguments.max_total_tokens})" if arguments.max_total_tokens else "--mem-fraction-static"
    ways = [f"a larger {larger}"]
    if not arguments.chunked_prefill_size or arguments.chunked_prefill_size <= 0:
        ways.append("with --chunked-prefill-size")
    if arguments.disaggregation_mode == "decode":
        ways.append(f"a smaller --num-reserved-decode-tokens (it is {arguments.num_reserved_decode_tokens})")
    if (page := arguments.page_size or 1) > 1:
        ways.append(f"a smaller --page-size (it is {page})")
    return f"Shorten the prompt, or start the server with {' or '.join(ways)}."


def most_prompt_of(scheduler: Any) -> int:
    """Prompt tokens of the largest request that SGLang's ``Scheduler`` can serve, by its context and by its pools."""
    lengths = range(1, scheduler.max_req_input_len)
    return bisect.bisect_left(lengths, True, key=lambda prompt: _answer(scheduler, prompt) is None)


def _answer(scheduler: Any, prompt: int) -> int | None:
    capacity = scheduler.max_total_num_tokens * scheduler.kv_shard_widening - scheduler.page_size * (scheduler.kv_shard_widening - 1)
    found: int | None = scheduler.token_to_kv_pool_allocator.max_new_tokens_for_memory(
        prompt, 1, token_capacity=capacity, sliding_window_size=scheduler.sliding_window_size, chunk_size=scheduler.chunked_prefill_size
    )
    return found


def publish(info: dict[str, Any], scheduler: Any) -> dict[str, Any]:
    """After ``Scheduler.get_init_info``: prompts that the pools cannot hold are too long for the front end, too."""
    if not named_gemma4(scheduler.model_config.hf_config):
        return info
    most = most_prompt_of(scheduler)
    if most + 1 < scheduler.max_req_input_len:
        logger.info("sglang-gemma4: the KV pools hold a prompt of at most %d tokens and its answer; a longer one is refused", most)
        scheduler.max_req_input_len = info["max_req_input_len"] = most + 1
    return info


def judge(_result: None, manager: Any, obj: Any, input_ids: list[int] | None) -> None:
    """After ``TokenizerManager._validate_one_request``: a prompt that the pools cannot hold goes no further.

    Raises:
        ValueError: the client is answered with status 400.
    """
    limit = manager.max_req_input_len
    if limit is None or manager.allow_auto_truncate or not named_gemma4(manager.model_config.hf_config):
        return
    if limit >= manager.context_len - 1 - SPARED:
        return  # the context ends first, which SGLang says
    tokens = len(input_ids if input_ids is not None else getattr(obj, "input_embeds", None) or ())
    if tokens >= limit:
        raise ValueError(refusal(tokens, limit - 1, manager.server_args))


def size_answer(original: Callable[[Any, Any], None], scheduler: Any, req: Any) -> None:
    """Around ``Scheduler.init_req_max_new_tokens``: what the front end did not see is truncated where the operator allows that, or refused.

    Turns of a session and prompts whose media were expanded here have grown since.
    """
    from sglang.srt.runtime_context import get_serving

    if not named_gemma4(scheduler.model_config.hf_config):
        original(scheduler, req)
        return
    prompt, most = len(req.origin_input_ids), scheduler.max_req_input_len - 1
    if prompt > most and get_serving().allow_auto_truncate and req.multimodal_inputs is None:
        kept = most + 1 - min(SPARED, req.sampling_params.max_new_tokens or SPARED)
        logger.warning("sglang-gemma4: the prompt of %s is truncated from %d to the %d tokens that fit", req.rid, prompt, kept)
        req.origin_input_ids = req.origin_input_ids[:kept]
    original(scheduler, req)
    if req.to_finish is not None and str(getattr(req.to_finish, "message", "")).startswith(STOCK_REFUSAL):
        req.to_finish.message = refusal(prompt, most, scheduler.server_args)


def turn_away(original: Callable[..., None], scheduler: Any, req: Any, is_retracted: bool = False) -> None:
    """Around ``Scheduler._add_request_to_queue``: who was refused is told at once, and waits for no other's prefill.

    Stock does so on the servers of a prefill/decode pair; elsewhere it queues a prompt of one token in the refused one's place.
    """
    from sglang.srt.disaggregation.utils import DisaggregationMode, is_unadmitted_reject

    mine = scheduler.disaggregation_mode == DisaggregationMode.NULL and named_gemma4(scheduler.model_config.hf_config)
    if mine and not is_retracted and is_unadmitted_reject(req):
        scheduler.retire_unadmitted_request(req)
    else:
        original(scheduler, req, is_retracted)
