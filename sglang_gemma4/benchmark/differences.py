"""Unrequested differences between the arms of a run: in the settings of the servers, and in the machines they ran on."""

import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sglang_gemma4.benchmark.records import Record

DRIFT = 0.01  # of the largest value; free memory varies this much between starts
_MISSING = "not set"
_SHOWN = 60  # characters of a value in a sentence

# Different at every start, dependent on where the process runs, or SGLang's private note of how a setting was given.
_INHERENT = re.compile(
    r"(^|\.)_|(^|[._])(port|ports|pid|pids|process_id|random_seed|seed|dist_init_addr|api_key|admin_api_key|start_time|uptime|log_file|url)$"
    r"|_port$|_pid$|_api_key$|sglang_gemma4_start\."
)
_FROM_MEMORY = re.compile(r"mem|pool|max_total|max_running|total_tokens|num_tokens|capacity|kv_cache_size|available|_gb$|_gib$|bytes")

_TEMPORARY = re.compile(rf"(?:{re.escape(tempfile.gettempdir())}|/tmp|/var/tmp)/\S+")

# SGLang's other names for a flag (arg_groups/fields); any other flag --some-name sets some_name.
_ALIASES = {
    "model": "model_path",
    "speculative_draft_model": "speculative_draft_model_path",
    "context_bucket": "cuda_graph_prefill_max_context",
    "enable_hicache": "enable_hierarchical_cache",
    "nccl_init_addr": "dist_init_addr",
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size",
    "ep": "ep_size",
}

# Settings that are fixed in every arm by a flag of the same name.
_PINNED = re.compile(
    r"max_(running_requests|total_num_tokens|total_tokens|prefill_tokens)|swa_full_tokens_ratio|mem_fraction_static|chunked_prefill_size"
    r"|((prefill_|decode_)?attention|sampling|moe_runner)_backend|kv_cache_dtype|page_size|context_length|cuda_graph_max_bs"
    r"|schedule_conservativeness|disable_(overlap_schedule|cuda_graph|radix_cache)"
)


def unasked(starts: Sequence[Record], header: Record) -> list[str]:
    """One sentence for each setting that differs between arms, or between starts of one arm, though no arm asked for it.

    An arm asks by an argument or environment variable that the other arms lack or set otherwise. A setting that every
    arm asks for alike and that still differs is reported. SGLang's servers, vLLM's and offline engines are compared
    separately. A setting sized from free memory that stays within :data:`DRIFT` everywhere is called a drift.

    Args:
        starts: the ``start`` records of a run.
        header: the run's ``header``, for ``arms``.
    """
    processes = list(dict.fromkeys(str(start["process"]) for start in starts))
    found: dict[str, list[str]] = {}
    for process in processes:
        own = [start for start in starts if start["process"] == process]
        names = sorted({name for start in own for name in _flat(start["settings"])})
        # vLLM arms have flags of their own: compared with them, no SGLang flag would be alike in every arm.
        asked = _asked([arm for arm in header["arms"] if (arm.get("engine") == "vllm") == (process == "vllm")], names)
        for name in names:
            sentence = None if _INHERENT.search(name) else _sentence(name, _by_arm(own, name), name in asked)
            if sentence:
                found.setdefault(sentence, []).append(process)
    return [sentence if where == processes else f"{sentence} ({' and '.join(where)} only)" for sentence, where in found.items()]


def between_headers(headers: Sequence[Record]) -> list[str]:
    """One sentence for each thing that changed between the invocations of a resumed run."""
    sentences = []
    compared = ("model", "dummy_weights", "dry_run", "device", "versions", "environment", "arms", "workloads")
    flat = [_flat({name: header.get(name) for name in compared}) for header in headers]
    for name in sorted({name for one in flat for name in one}):
        shown = _distinct([one.get(name, _MISSING) for one in flat])
        if len(shown) > 1:
            sentences.append(f"the run was resumed with another {name}: {' then '.join(_text(value) for value in shown)}")
    return sentences


def _sentence(name: str, by_arm: Mapping[str, list[Any]], asked: bool) -> str | None:
    distinct = {arm: _distinct(values) for arm, values in by_arm.items()}
    everything = _distinct([value for values in distinct.values() for value in values])
    if len(everything) < 2:
        return None
    shown = ", ".join(f"{arm} {' then '.join(_text(value) for value in values)}" for arm, values in distinct.items())
    flag = f"--{name.replace('_', '-').replace('-num-', '-')}"
    pin = f"; pass {flag} to every arm to pin it" if _PINNED.fullmatch(name) else ""
    moving = [arm for arm, values in distinct.items() if len(values) > 1]
    if not asked and _FROM_MEMORY.search(name) and (drift := _drift(everything)) is not None and drift < DRIFT:
        return f"{name} drifts by {drift:.2%}: {shown}{pin}"
    alike = len({frozenset(map(_key, values)) for values in distinct.values()}) == 1  # one arm, or arms that move between the same values
    if moving and (asked or alike):
        return f"{name} differs between starts of {' and '.join(moving)}: {shown}{pin}"
    if asked:
        return None
    if name == "max_running_requests":
        pin += " (SGLang lowers it to 48 for speculation unless told otherwise)"
    return f"{name} differs though no arm asked for it: {shown}{pin}"


def _by_arm(starts: Iterable[Record], name: str) -> dict[str, list[Any]]:
    """The setting's value at each start, in order, by arm."""
    values: dict[str, list[Any]] = {}
    for start in starts:
        values.setdefault(str(start["arm"]), []).append(_flat(start["settings"]).get(name, _MISSING))
    return values


def _asked(arms: Sequence[Mapping[str, Any]], names: Sequence[str]) -> set[str]:
    """The settings that the arms' own arguments and environments set differently."""
    wanted = [_wanted(arm, names) for arm in arms]
    keys = {key for arm in wanted for key in arm}
    differing = {key for key in keys if len(_distinct([arm.get(key, _MISSING) for arm in wanted])) > 1}
    if "speculative_algorithm" in differing and any("speculative_algorithm" not in arm for arm in wanted):
        # One arm speculates and another does not: the draft's depth and width are part of what was asked.
        differing |= {name for name in names if name.split(".")[-1].startswith("speculative_")}
    return differing | {name for name in names if name.split(".")[-1] in differing}


def _wanted(arm: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The value that this arm asks for, by setting: from ``--some-name 3``, ``--some-name=3``, ``--flag`` and environment variables."""
    wanted: dict[str, Any] = {}
    for variable, value in dict(arm.get("environment") or {}).items():
        wanted[str(variable)] = wanted[str(variable).lower()] = str(value)
    current = None
    for argument in map(str, arm.get("arguments") or []):
        if argument.startswith("--"):
            flag, equals, value = argument[2:].partition("=")
            current = _setting(flag.replace("-", "_"), names)
            wanted[current] = value if equals else "true"
        elif current is not None:
            wanted[current] = argument if wanted[current] == "true" else f"{wanted[current]} {argument}"
    return wanted


def _setting(flag: str, names: Sequence[str]) -> str:
    """The setting that a flag stands for; like argparse, it accepts a flag's unique prefix (``--tp`` for ``--tp-size``)."""
    if flag in _ALIASES or flag in names:
        return _ALIASES.get(flag, flag)
    longer = [name for name in names if name.startswith(flag)]
    return longer[0] if len(longer) == 1 else flag


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings flattened to one level, with names joined by dots and temporary paths replaced by one text."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = _TEMPORARY.sub("a temporary path", value) if isinstance(value, str) else value
    return flat


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _distinct(values: Iterable[Any]) -> list[Any]:
    kept: dict[str, Any] = {}
    for value in values:
        kept.setdefault(_key(value), value)
    return list(kept.values())


def _drift(values: Sequence[Any]) -> float | None:
    """Largest difference relative to the largest value; None if a value is not a number or is 0."""
    if any(isinstance(value, bool) or not isinstance(value, int | float) or value <= 0 for value in values):
        return None
    return float((max(values) - min(values)) / max(values))


def _text(value: Any) -> str:
    shown = value if isinstance(value, str) else _key(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}... ({len(shown)} characters)"
