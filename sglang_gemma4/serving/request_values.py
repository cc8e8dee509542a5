"""Checks every value of a request before it is tokenised, batched or sent to the scheduler.

A check raises a ValueError that names the field, the value, the limit and, if there is one, the remedy; SGLang answers it with status 400.
Each value is checked once, in microseconds and without tensors.
"""

import json
from collections.abc import Mapping
from typing import Any

from sglang_gemma4.serving.prompt_values import Shape, judge_prompts
from sglang_gemma4.serving.request_limits import NAME_LENGTH, PROCESSOR_LENGTH, TOP_LOGPROBS, Limits
from sglang_gemma4.serving.sampling_values import judge_sampling
from sglang_gemma4.serving.value_kinds import (
    INT32_MAX,
    INT64_MAX,
    Kind,
    absent,
    entries,
    flag,
    integer,
    number,
    one_of,
    refuse,
    shown,
    text,
)

HEALTH_CHECK = "HEALTH_CHECK"
"""Prefix of health checks' request ids; SGLang drops such requests while the server is busy."""
NAME = text(NAME_LENGTH)
REQUEST_ID = text(NAME_LENGTH, empty=False)
SESSION: Mapping[str, Kind] = {
    "id": REQUEST_ID,
    "rid": NAME,
    "offset": integer(0, INT32_MAX),
    "replace": flag,
    "drop_previous_output": flag,
}


def judge(request: Any, limits: Limits, from_client: bool) -> None:
    """Check a request for generation, before SGLang spreads its lists over prompts.

    Args:
        request: has the fields of SGLang's ``GenerateReqInput``.
        from_client: whether the request came over a connection, not from a call in this process; then its work is limited too.

    Raises:
        ValueError: a value is of a wrong type or outside its limits, or a list does not have one entry for each prompt.
    """
    if request.session_params is not None:
        _judge_session(request.session_params)
    shape = judge_prompts(request, limits)
    copies = _judge_parameters(request.sampling_params, shape, limits)
    if from_client and shape.prompts * copies > limits.sequences:
        raise ValueError(
            f"n: {copies} answers for each of {shape.prompts} prompts are {shape.prompts * copies} sequences, and one request may have "
            f"{limits.sequences}; send several requests, or raise --max-running-requests, four times which is the limit"
        )
    listed = Shape(shape.prompts, shape.is_list or copies > 1)
    for name, kind in each_prompts(limits).items():
        _judge_each(name, getattr(request, name.partition(" ")[0], None), kind, listed)
    for name, kind in SCALARS.items():
        value = getattr(request, name, None)
        if value is not None:
            kind(name, value)
    _judge_names(request, from_client)
    judge_ids_of_logprobs(request.token_ids_logprob, limits, listed)
    _judge_labels(getattr(request, "custom_labels", None), limits)


def _judge_parameters(given: Any, shape: Shape, limits: Limits) -> int:
    """Check the sampling parameters of all prompts. Returns the number of answers for each prompt."""
    if not isinstance(given, (list, tuple)):
        judge_sampling(given, limits)
        return _copies(given)
    _judge_count("sampling_params", given, shape)
    for index, one in enumerate(given):
        judge_sampling(one, limits, f"sampling_params[{index}]")
    counts = {_copies(one) for one in given}
    if len(counts) > 1:
        raise ValueError(f"n: {shown(sorted(counts))} differ between prompts; send prompts with another n in a request of their own")
    return counts.pop() if counts else 1


def wants_seed(given: Any) -> bool:
    """Whether any of a checked request's sampling parameters has a seed that affects its answer."""
    several = given if isinstance(given, (list, tuple)) else [given]
    return any(one and one.get("sampling_seed") is not None and one.get("temperature") != 0 for one in several)


def _copies(parameters: Mapping[str, Any] | None) -> int:
    parameters = parameters or {}
    return 1 if (parameters.get("beam_width") or 1) > 1 else int(parameters.get("n") or 1)


def _judge_count(name: str, given: Any, shape: Shape) -> None:
    if not shape.is_list:
        raise ValueError(f"{name}: {shown(given)} is a list, and the request has one prompt that is not in a list; send one value")
    if len(given) != shape.prompts:
        raise ValueError(
            f"{name}: a list of {len(given)} entries, and the request has {shape.prompts} prompts; send one for each, or one value"
        )


def _judge_each(name: str, given: Any, kind: Kind, shape: Shape) -> None:
    if given is None:
        return
    if not isinstance(given, (list, tuple)):
        kind(name, given)
        return
    _judge_count(name, given, shape)
    for index, one in enumerate(given):
        if one is not None:
            kind(f"{name}[{index}]", one)


def each_prompts(limits: Limits) -> dict[str, Kind]:
    """The checks of fields that may have a value for each prompt."""
    return {
        "return_logprob": flag,
        "logprob_start_len": integer(-1, limits.context),
        "top_logprobs_num (top_logprobs, logprobs)": integer(0, min(TOP_LOGPROBS, limits.vocabulary)),
        **EACH,
        **({"custom_logit_processor": absent(UNPROCESSED.format(limits.without_processors))} if limits.without_processors else {}),
    }


def processor(field: str, value: Any) -> None:
    """Check for a serialised logit processor, as far as possible without running its content."""
    text(PROCESSOR_LENGTH)(field, value)
    try:
        bytes.fromhex(json.loads(value)["callable"])
    except (ValueError, TypeError, KeyError):
        refuse(field, value, "what CustomLogitProcessor.to_str() writes")


UNPROCESSED = (
    "SGLang applies none to what {} drafts, so only an answer's first token would follow it; leave it out, or use a server without a draft"
)
EACH: Mapping[str, Kind] = {
    "return_sampling_mask": flag,
    "sampling_logprobs_mode": one_of("selected", "support"),
    "return_hidden_states": one_of(True, False, "last", "full"),
    "custom_logit_processor": processor,
    "lora_path": NAME,
    "lora_id": absent("SGLang sets it from lora_path"),
    "bootstrap_host": NAME,
    "bootstrap_port": integer(0, 65535),
    "bootstrap_room": integer(0, INT64_MAX),
    "bootstrap_pair_key": NAME,
    "decode_tp_size": integer(1, 65535),
    "extra_key": NAME,
    "cache_salt": NAME,
}
SCALARS: Mapping[str, Kind] = {
    **dict.fromkeys(("stream", "log_metrics", "return_text_in_logprobs", "return_routed_experts", "return_indexer_topk"), flag),
    **dict.fromkeys(("return_flat_raw_top_logprobs", "return_flat_raw_output_top_logprobs", "return_flat_raw_top_logprobs_b64"), flag),
    **dict.fromkeys(("background", "require_reasoning", "no_logs", "return_bytes", "return_entropy", "return_prompt_token_ids"), flag),
    **dict.fromkeys(("routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"), integer(0, 65535)),
    **dict.fromkeys(("session_id", "routing_key", "conversation_id"), NAME),
    "routed_experts_start_len": integer(0, INT32_MAX),
    "max_thinking_tokens": integer(0, INT32_MAX),
    "priority": integer(-INT64_MAX - 1, INT64_MAX),
    "received_time": number(0, 1e18),
}


def _judge_names(request: Any, from_client: bool) -> None:
    """Check the request's ids; SGLang itself compares their number with the number of prompts."""
    given = request.rid
    names = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
    for name in names:
        REQUEST_ID("rid", name)
        if from_client and name.startswith(HEALTH_CHECK):
            raise ValueError(f"rid: {shown(name)} begins with {HEALTH_CHECK}, as the server's own requests do; choose another")
    if isinstance(given, (list, tuple)) and not isinstance(request.text, (list, tuple)) and _one_prompt(request):
        raise ValueError(f"rid: {shown(given)} is a list, and the request has one prompt that is not in a list; send one string")


def _one_prompt(request: Any) -> bool:
    """Whether the request has one prompt that is not in a list."""
    if request.text is not None:
        return isinstance(request.text, str)
    ids = request.input_ids if request.input_ids is not None else request.input_embeds[0]
    return not len(ids) or not hasattr(ids[0], "__len__")


def judge_ids_of_logprobs(given: Any, limits: Limits, shape: Shape) -> None:
    """Check token ids whose log-probabilities are asked for: one list for all prompts, or one for each.

    Raises:
        ValueError: ``given`` is no such list, or an id is outside the vocabulary.
    """
    if given is None:
        return
    ids = entries(integer(0, limits.vocabulary - 1), TOP_LOGPROBS)
    nested = isinstance(given, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in given)
    if not nested:
        ids("token_ids_logprob", given)
        return
    _judge_count("token_ids_logprob", given, shape)
    for index, one in enumerate(given):
        if one is not None:
            ids(f"token_ids_logprob[{index}]", one)


def _judge_session(given: Any) -> None:
    if not isinstance(given, Mapping):
        refuse("session_params", given, "an object")
    for name, value in given.items():
        if name not in SESSION:
            raise ValueError(f"session_params: there is no field {name!r:.60}; there are {', '.join(SESSION)}")
        if value is not None:
            SESSION[name](f"session_params.{name}", value)


def _judge_labels(given: Any, limits: Limits) -> None:
    if given is None:
        return
    if not isinstance(given, Mapping):
        refuse("custom_labels", given, "an object")
    for name, value in given.items():
        if name not in limits.labels:
            allowed = ", ".join(sorted(limits.labels)) or "none"
            raise ValueError(
                f"custom_labels: {name!r:.60} is not among those that this server allows ({allowed}); "
                "--tokenizer-metrics-allowed-custom-labels names them"
            )
        NAME(f"custom_labels.{name}", value)
