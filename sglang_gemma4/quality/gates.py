"""The gate: how much a switch may change, read from TOML and checked against a comparison."""

import tomllib
from pathlib import Path
from typing import Any

from sglang_gemma4.patching.switches import SWITCHES

SHIPPED = Path(__file__).with_name("gates.toml")
DEFAULT = "default"
KEYS = ("accuracy_loss", "p_value", "identical_answers", "accept_length_loss", "nats_per_token_loss")
SHARES = ("accuracy_loss", "p_value", "identical_answers")


def read(path: Path, switch: str | None = None) -> dict[str, float]:
    """The limits for ``switch`` (None: the default ones), every key of ``KEYS``.

    Raises:
        ValueError: the file is absent, malformed or incomplete, or has an unknown section, key or value; ``switch`` is unknown.
    """
    if switch is not None and switch not in SWITCHES:
        raise ValueError(f"--switch {switch} is not a switch of this package; `sglang-gemma4 patches` lists them")
    try:
        sections = tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"gate file {path} cannot be read ({error.strerror}); leave its name out for the shipped one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"gate file {path} is not TOML: {error}") from None
    for name, section in sections.items():
        _check(path, name, section)
    missing = [key for key in KEYS if key not in sections.get(DEFAULT, {})]
    if missing:
        raise ValueError(f"gate file {path}: section [{DEFAULT}] lacks {', '.join(missing)}")
    return {**sections[DEFAULT], **sections.get(switch or DEFAULT, {})}


def _check(path: Path, name: str, section: Any) -> None:
    if name != DEFAULT and name not in SWITCHES:
        raise ValueError(
            f"gate file {path}: [{name}] is not a switch of this package; expected [{DEFAULT}] or one of {', '.join(SWITCHES)}"
        )
    if not isinstance(section, dict):
        raise ValueError(f"gate file {path}: {name} stands outside a section; put it under [{DEFAULT}]")
    for key, value in section.items():
        if key not in KEYS:
            raise ValueError(f"gate file {path}: [{name}] {key} is unknown; expected {', '.join(KEYS)}")
        largest = 1 if key in SHARES else float("inf")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= largest:
            raise ValueError(f"gate file {path}: [{name}] {key} = {value!r}; expected a number from 0" + (" to 1" if key in SHARES else ""))


def exceeded(made: dict[str, Any], limits: dict[str, float]) -> list[str]:
    """One line for each limit that ``made`` (:func:`~sglang_gemma4.quality.compare.compare`) exceeds.

    An accept length of A without one of B exceeds any limit.
    """
    return _text(made, limits) if made["eval"] == "text" else _answers(made, limits)


def _text(made: dict[str, Any], limits: dict[str, float]) -> list[str]:
    loss, interval, allowed = made["nats_per_token_loss"], made["nats_per_token_loss_interval"], limits["nats_per_token_loss"]
    beyond_noise = interval is None or interval[0] > 0
    return [f"nats per token: B loses {loss:.6f}, allowed {allowed:g}"] if loss > allowed and beyond_noise else []


def _answers(made: dict[str, Any], limits: dict[str, float]) -> list[str]:
    lines = []
    loss = made["a"]["accuracy"] - made["b"]["accuracy"]
    if loss > limits["accuracy_loss"] and made["p_value"] < limits["p_value"]:
        lines.append(
            f"accuracy: B loses {loss:.4f} (p = {made['p_value']:.4g} < {limits['p_value']:g}), allowed {limits['accuracy_loss']:g}"
        )
    if made["identical_answers"] < limits["identical_answers"]:
        lines.append(f"identical answers: {made['identical_answers']:.4f}, at least {limits['identical_answers']:g} asked")
    a, b = (made[name]["accept_length"] for name in "ab")
    if a is not None and b is None:
        lines.append(f"accept length: A has {a:.3f} tokens per step, B has none: it ran without speculative decoding")
    elif a is not None and a - b > limits["accept_length_loss"]:
        lines.append(f"accept length: B loses {a - b:.3f} tokens per step, allowed {limits['accept_length_loss']:g}")
    return lines
