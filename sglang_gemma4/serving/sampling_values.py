"""Checks sampling parameters, each with a check of its own, so that no value reaches a tensor that cannot hold it."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sglang_gemma4.serving.request_limits import (
    BIASES,
    LARGEST_BIAS,
    PARAMETER_DEPTH,
    PARAMETER_VALUES,
    SMALLEST_REPETITION_PENALTY,
    STOP_IDS,
    STOP_LENGTH,
    STOP_PATTERNS,
    STOPS,
    Limits,
)
from sglang_gemma4.serving.value_kinds import (
    FLOAT32_MAX,
    FLOAT32_TINY,
    INT32_MAX,
    INT64_MAX,
    Kind,
    absent,
    entries,
    flag,
    integer,
    is_integer,
    number,
    one_or_entries,
    refuse,
    text,
)

ALSO = {
    "max_new_tokens": "max_tokens, max_completion_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
}
"""Names of parameters at other endpoints."""
_SET_HERE = absent("SGLang sets this field itself; use stop or stop_regex")


def judge_sampling(parameters: Any, limits: Limits, where: str = "sampling_params") -> None:
    """Check one prompt's sampling parameters; None, also for a single parameter, means SGLang's default.

    Raises:
        ValueError: a parameter is unknown or its value is not allowed.
    """
    if parameters is None:
        return
    if not isinstance(parameters, Mapping):
        refuse(where, parameters, "an object of sampling parameters")
    kinds = sampling_kinds(limits)
    for name, value in parameters.items():
        if name not in limits.parameters and name not in kinds:
            known = ", ".join(sorted(limits.parameters & set(kinds)))
            raise ValueError(f"{where}: there is no parameter {name!r:.60}; there are {known}")
        if value is not None and name in kinds:
            kinds[name](f"{name} ({ALSO[name]})" if name in ALSO else name, value)
    _judge_lengths(parameters)


def _judge_lengths(parameters: Mapping[str, Any]) -> None:
    least, most = parameters.get("min_new_tokens"), parameters.get("max_new_tokens")
    if least is not None and most is not None and least > most:
        raise ValueError(f"min_new_tokens (min_tokens): {least} is above max_new_tokens (max_tokens) {most}; lower it, or raise that")


@lru_cache(maxsize=8)
def sampling_kinds(limits: Limits) -> Mapping[str, Kind]:
    """The check of each sampling parameter; grammars and watermarks are checked elsewhere."""
    ids = integer(0, limits.vocabulary - 1)
    return {
        "max_new_tokens": integer(0, INT32_MAX),
        "min_new_tokens": integer(0, limits.context),
        "n": integer(1, limits.sequences),
        "beam_width": integer(1, limits.sequences),
        "temperature": number(0, FLOAT32_MAX),
        "top_p": number(FLOAT32_TINY, 1),
        "top_k": integer(1, INT32_MAX, -1),
        "min_p": number(0, 1),
        "frequency_penalty": number(-2, 2),
        "presence_penalty": number(-2, 2),
        "repetition_penalty": number(SMALLEST_REPETITION_PENALTY, 2),
        "sampling_seed": integer(-INT64_MAX - 1, INT64_MAX),
        "logit_bias": biases(limits),
        "stop": one_or_entries(text(STOP_LENGTH, empty=False), STOPS),
        "stop_token_ids": entries(ids, STOP_IDS),
        "stop_regex": one_or_entries(pattern, STOP_PATTERNS),
        "stream_interval": integer(-INT32_MAX, INT32_MAX),
        "custom_params": plain_object,
        **dict.fromkeys(
            ("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "ebnf_full_assistant"), flag
        ),
        **dict.fromkeys(("stop_strs", "stop_regex_strs", "stop_str_max_len", "stop_regex_max_len", "is_normalized"), _SET_HERE),
    }


def biases(limits: Limits) -> Kind:
    """Check for an object of at most :data:`BIASES` finite biases by token id."""
    bias, ids = number(-LARGEST_BIAS, LARGEST_BIAS), integer(0, limits.vocabulary - 1)

    def check(field: str, value: Any) -> None:
        if not isinstance(value, Mapping) or len(value) > BIASES:
            size = f"an object of {len(value)} entries" if isinstance(value, Mapping) else value
            refuse(field, size, f"an object of at most {BIASES} biases by token id")
        for key, entry in value.items():
            ids(f"{field}'s token id", _token_id(key))
            bias(f"{field}[{key}]", entry)

    return check


def _token_id(key: Any) -> Any:
    """The token id of a JSON key, which is a string: "7" is token 7. Other keys are returned unchanged."""
    digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 12
    return int(key) if digits or is_integer(key) else key


def pattern(field: str, value: Any) -> None:
    """Check for a regular expression that Python can compile."""
    if not isinstance(value, str):
        refuse(field, value, "a string")
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        refuse(field, value, f"a regular expression: {error}")


def plain_object(field: str, value: Any) -> None:
    """Check for an object of JSON values within the limits of depth and size."""
    if not isinstance(value, Mapping):
        refuse(field, value, "an object")
    level: list[Any] = [value]
    seen = 0
    for _ in range(PARAMETER_DEPTH):
        children = [child for one in level for child in (one.values() if isinstance(one, Mapping) else one)]
        seen += len(children)
        if seen > PARAMETER_VALUES:
            raise ValueError(f"{field}: more than {PARAMETER_VALUES} values; send fewer")
        level = [child for child in children if isinstance(child, (Mapping, list, tuple))]
        if not level:
            return
    raise ValueError(f"{field}: nested deeper than {PARAMETER_DEPTH}; send it flat")
