"""Hides a server's keys in what it reports: with only --admin-api-key set, /server_info is open, and stock's answer has that key."""

from collections.abc import Mapping
from typing import Any

KEYS = ("api_key", "admin_api_key", "ssl_keyfile_password")
HIDDEN = "(set)"


def of_state(answer: Any, *_args: Any) -> Any:
    """After ``Scheduler.get_internal_state``: hide the keys in its answer."""
    answer.internal_state = hide_keys(answer.internal_state)
    return answer


def hide_keys(told: Any, *_args: Any) -> Any:
    """After ``build_server_info``: the server's info with its keys hidden, also inside other values."""
    secrets = tuple(sorted(_secrets(told), key=len, reverse=True))
    return _hidden(told, secrets) if secrets else told


def _secrets(told: Any) -> set[str]:
    if isinstance(told, Mapping):
        own = {value for key, value in told.items() if key in KEYS and isinstance(value, str) and value}
        return own.union(*map(_secrets, told.values()))
    if isinstance(told, (list, tuple)):
        return set().union(*map(_secrets, told))
    return set()


def _hidden(told: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(told, Mapping):
        return {key: HIDDEN if key in KEYS and value else _hidden(value, secrets) for key, value in told.items()}
    if isinstance(told, (list, tuple)):
        return [_hidden(one, secrets) for one in told]
    if isinstance(told, str):
        return HIDDEN if told in secrets else _without(told, secrets)
    return told


def _without(said: str, secrets: tuple[str, ...]) -> str:
    """A command line with its keys hidden."""
    words = said.split(" ")
    return " ".join(HIDDEN if word.strip("'\"") in secrets else _value_hidden(word, secrets) for word in words)


def _value_hidden(word: str, secrets: tuple[str, ...]) -> str:
    name, equals, value = word.partition("=")
    return f"{name}={HIDDEN}" if equals and value.strip("'\"") in secrets else word
