"""The largest request that this server's KV pools can serve, and the error for a client whose request is larger.

A request of n prompt and m answer tokens is served if all of these hold:

- ``n + m + page < full pool``: SGLang admits no other (``PrefillAdder.add_one_req``), since a request may take a page
  more than its tokens.
- ``n + m - 2 + reserve <= full pool`` under MTP: before the last step n + m - 2 tokens are committed, and each step
  allocates ``reserve`` tokens beyond them (``allocation_sizing.get_alloc_reserve_per_decode``).
- Without chunked prefill the sliding pool holds n in whole pages at once (``pool_end.admit_whole``; SGLang requires
  more than one further page).
- On the decode server of a prefill/decode pair, n in whole pages leaves ``--num-reserved-decode-tokens`` free, and m
  fits into the sliding pool beside a window (``DecodePreallocQueue``). With pages of one token both pools hold the
  whole prompt.

Stock checks the first condition with the prompt in whole pages and never says that a prompt cannot fit: such a request
gets no answer or waits for ever (``mem_cache/allocator/base.py:88``). Unified memory counts bytes itself, but not those
that MTP allocates.
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
"""Start of the message of ``Scheduler.init_req_max_new_tokens`` if the pool answers None."""
SPARED = 5
"""Tokens that SGLang leaves for the answer where it truncates a prompt (``tp_worker.py:572``)."""


@dataclass(frozen=True)
class Pools:
    """The limits on a request, in tokens."""

    full: int
    page: int
    reserve: int = 0  # tokens that a step allocates beyond the committed ones; 0 without speculation
    sliding: int | None = None  # the pool that holds a whole prompt; None where prefill is chunked or one pool serves all layers
    spared: int = 0  # tokens that a prompt has to leave free
    answers: int | None = None  # most tokens of an answer; None: as many as the prompt leaves

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
        """Tokens of answer for a prompt, ``wanted`` at most; None if there is no room for the first one."""
        if prompt > self.most_prompt:
            return None
        return min(wanted, self.most - prompt, wanted if self.answers is None else self.answers)

    def _pages(self, tokens: int) -> int:
        return tokens // self.page * self.page


def most_new_tokens(
    original: Callable[..., int | None], allocator: Any, input_tokens: int, max_new_tokens: int, *, token_capacity: int, **given: Any
) -> int | None:
    """Around ``BaseTokenToKVPoolAllocator.max_new_tokens_for_memory``: what fits, or None if the prompt does not."""
    if not _gemma4():
        return original(allocator, input_tokens, max_new_tokens, token_capacity=token_capacity, **given)
    return pools_of(allocator, token_capacity, given["chunk_size"], given["sliding_window_size"]).answer(input_tokens, max_new_tokens)


def pools_of(allocator: Any, capacity: int, chunk: int | None, window: int | None) -> Pools:
    """The limits on a request, from the server's pools, how it prefills and decodes, and its role in a pair.

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
    """:func:`most_new_tokens` around unified memory's allocator, which counts both layer types' bytes itself."""
    if not _gemma4():
        return original(allocator, input_tokens, max_new_tokens, **given)
    reserve = _reserve()
    found = original(allocator, input_tokens, max(1, max_new_tokens) + reserve, **given)
    if found is None or found - reserve < 1:
        return None
    return min(max_new_tokens, found - reserve)


def _reserve() -> int:
    """Tokens that a speculative decode step allocates beyond the committed ones; 0 on a server without such steps."""
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
    """The error for a client whose prompt is longer than ``most`` tokens.

    Args:
        arguments: SGLang's ``ServerArgs``; the error names those that would make room.
    """
    held = f"the KV pools of this server hold a prompt of at most {most} tokens and its answer"
    return f"The prompt has {prompt} tokens, and {held}. {remedies(arguments)}"


def no_room(prompt: int, arguments: Any) -> str:
    """The error where the pools hold the prompt, but not a first chunk of the size that the server's flags ask for."""
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
    """After ``Scheduler.get_init_info``: lower the front end's limit to prompts that the pools can hold."""
    if not named_gemma4(scheduler.model_config.hf_config):
        return info
    most = most_prompt_of(scheduler)
    if most + 1 < scheduler.max_req_input_len:
        logger.info("sglang-gemma4: the KV pools hold a prompt of at most %d tokens and its answer; a longer one is refused", most)
        scheduler.max_req_input_len = info["max_req_input_len"] = most + 1
    return info


def judge(_result: None, manager: Any, obj: Any, input_ids: list[int] | None) -> None:
    """After ``TokenizerManager._validate_one_request``: refuse a prompt that the pools cannot hold.

    Raises:
        ValueError: the client is answered with status 400.
    """
    limit = manager.max_req_input_len
    if limit is None or manager.allow_auto_truncate or not named_gemma4(manager.model_config.hf_config):
        return
    if limit >= manager.context_len - 1 - SPARED:
        return  # the context is the smaller limit, and SGLang checks it
    tokens = len(input_ids if input_ids is not None else getattr(obj, "input_embeds", None) or ())
    if tokens >= limit:
        raise ValueError(refusal(tokens, limit - 1, manager.server_args))


def size_answer(original: Callable[[Any, Any], None], scheduler: Any, req: Any) -> None:
    """Around ``Scheduler.init_req_max_new_tokens``: truncate a prompt that became too long, if allowed, or refuse it.

    Session turns and prompts whose media are expanded here grow after the front end's check.
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
    """Around ``Scheduler._add_request_to_queue``: answer a refused request at once, without waiting for other prefills.

    Stock does so on the servers of a prefill/decode pair. Elsewhere it queues a prompt of one token in the refused
    one's place.
    """
    from sglang.srt.disaggregation.utils import DisaggregationMode, is_unadmitted_reject

    mine = scheduler.disaggregation_mode == DisaggregationMode.NULL and named_gemma4(scheduler.model_config.hf_config)
    if mine and not is_retracted and is_unadmitted_reject(req):
        scheduler.retire_unadmitted_request(req)
    else:
        original(scheduler, req, is_retracted)
