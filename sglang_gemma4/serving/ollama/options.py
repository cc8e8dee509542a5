"""The ``options`` of an Ollama request as fields of SGLang's chat and completion requests."""

import re
from collections.abc import Mapping
from typing import Any

from sglang_gemma4.serving.request_limits import SMALLEST_REPETITION_PENALTY, STOP_LENGTH, STOPS
from sglang_gemma4.serving.value_kinds import (
    FLOAT32_MAX,
    FLOAT32_TINY,
    INT32_MAX,
    INT64_MAX,
    Kind,
    flag,
    integer,
    number,
    one_of,
    one_or_entries,
    refuse,
    shown,
    text,
)

SAMPLING: Mapping[str, tuple[str, Kind]] = {
    "temperature": ("temperature", number(0, FLOAT32_MAX)),
    "top_p": ("top_p", number(FLOAT32_TINY, 1)),
    "top_k": ("top_k", integer(-1, INT32_MAX)),
    "min_p": ("min_p", number(0, 1)),
    "seed": ("seed", integer(-INT64_MAX - 1, INT64_MAX)),
    "num_predict": ("max_tokens", integer(-2, INT32_MAX)),
    "stop": ("stop", one_or_entries(text(STOP_LENGTH, empty=False), STOPS)),
    "repeat_penalty": ("repetition_penalty", number(SMALLEST_REPETITION_PENALTY, 2)),
    "presence_penalty": ("presence_penalty", number(-2, 2)),
    "frequency_penalty": ("frequency_penalty", number(-2, 2)),
}
"""By option: the name of the request's field, and the check of the option's value."""
_COUNT = integer(-1, INT32_MAX)
LOADING: Mapping[str, Kind] = {
    **dict.fromkeys(("num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "repeat_last_n"), _COUNT),
    "num_ctx": integer(1, INT32_MAX),
    **dict.fromkeys(("numa", "low_vram", "f16_kv", "use_mmap", "use_mlock"), flag),
}
"""Options for how Ollama loads a model or shifts its context. Here the operator chooses that; no answer depends on these options."""
OFF: Mapping[str, tuple[Any, ...]] = {
    "mirostat": (0,),
    "tfs_z": (1, 1.0),
    "typical_p": (1, 1.0),
    "penalize_newline": (True,),
    "vocab_only": (False,),
    "embedding_only": (False,),
    "logits_all": (False,),
}
"""Options that this server does not serve: it accepts only the values that turn an option off."""
PENALTIES: Mapping[str, int] = {"repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""The penalties, which cover the whole text, and the values that turn them off."""
_UNUSED = ("mirostat_tau", "mirostat_eta")
_FREE = ("seed", "num_predict")
"""Options whose negative values mean that the option is not given."""
_TIME = re.compile(r"-?(\d+\.?\d*(ns|us|µs|ms|s|m|h)?)+")


def fields(options: Any, context: int) -> dict[str, Any]:
    """The fields of SGLang's request for Ollama's ``options``.

    Args:
        context: the server's context length in tokens.

    Raises:
        ValueError: an option is unknown, not served, or its value is outside its limits.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        refuse("options", options, "an object")
    given = {name: _number(value) for name, value in options.items() if value is not None}
    found: dict[str, Any] = {}
    for name, value in given.items():
        found.update(_field(name, value, context))
    if given.get("repeat_last_n", -1) != -1 and (active := [name for name, off in PENALTIES.items() if given.get(name, off) != off]):
        at = f"options.repeat_last_n: {given['repeat_last_n']} beside {active[0]} is not served"
        raise ValueError(f"{at}: penalties cover the whole text; give -1, or leave the option out")
    return found


def _number(value: Any) -> Any:
    """A float with an integer value as an integer: clients in languages without integers send 42.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _field(name: str, value: Any, context: int) -> dict[str, Any]:
    at = f"options.{name}"
    if name in SAMPLING:
        field, kind = SAMPLING[name]
        kind(at, value)
        if name == "num_predict" and value > context:
            raise ValueError(f"{at}: {value} is above this server's context of {context} tokens; lower it, or give -1 for no limit")
        return _sampling(name, field, value)
    if name in LOADING:
        LOADING[name](at, value)
    elif name in OFF:
        one_of(*OFF[name])(at, value)
    elif name in _UNUSED:
        number(0, FLOAT32_MAX)(at, value)
    else:
        raise ValueError(f"options: there is no option {shown(name)} here; there are {', '.join(sorted((*SAMPLING, *LOADING)))}")
    return {}


def _sampling(name: str, field: str, value: Any) -> dict[str, Any]:
    if name == "num_predict" and value == 0:
        raise ValueError("options.num_predict: 0 asks for no token; give the most tokens of the answer, or -1 for no limit")
    if name in _FREE and value < 0:
        return {}
    return {field: -1 if name == "top_k" and value == 0 else value}


def keep_alive(value: Any, loads: bool) -> None:
    """Check ``keep_alive``; the model stays loaded, whatever time is asked for.

    Args:
        loads: whether the request has no prompt, and so only loads or unloads the model.

    Raises:
        ValueError: the value is not a time, or the request asks to unload the model.
    """
    if value is None or value == "":
        return
    written = str(value).strip()
    if isinstance(value, bool) or not isinstance(value, int | float | str) or not _TIME.fullmatch(written):
        refuse("keep_alive", value, "a number of seconds or a time such as '5m'")
    if loads and not re.search("[1-9]", written):
        raise ValueError(f"keep_alive: {shown(value)} asks to unload the model, which this server keeps loaded; leave the field out")
