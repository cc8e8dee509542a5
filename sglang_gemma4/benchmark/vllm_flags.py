"""Flags of SGLang in vLLM's words: those that mean the same are translated, any other is refused, so that no arm runs without what a run
asks of all arms."""

import json
from collections.abc import Iterator, Mapping, Sequence

FLAGS = {
    "max-running-requests": "max-num-seqs",
    "context-length": "max-model-len",
    "mem-fraction-static": "gpu-memory-utilization",
    "load-format": "load-format",
    "dtype": "dtype",
    "random-seed": "seed",
    "tp": "tensor-parallel-size",
    "tp-size": "tensor-parallel-size",
    "tensor-parallel-size": "tensor-parallel-size",
}
"""SGLang's flags that mean the same to vLLM, by name; ``--disable-radix-cache`` is the one without a value."""


def of_arm(shared: Sequence[str], own: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """vLLM's flags of an arm: those ``shared`` by all arms (SGLang's), then its ``own`` (vLLM's), with the accept length that the run's
    ``environment`` has the SGLang arms simulate.

    Raises:
        ValueError: a shared flag has no counterpart.
    """
    found = translated(shared)
    if "--no-enable-prefix-caching" not in found:
        found.append("--enable-prefix-caching")  # SGLang's default
    return [*found, *(_with_accept_length(word, environment) for word in own)]


def translated(flags: Sequence[str]) -> list[str]:
    """SGLang's ``flags`` as vLLM's.

    Raises:
        ValueError: one has no counterpart.
    """
    found = []
    for name, value in pairs(flags):
        if name == "disable-radix-cache" and value is None:
            found.append("--no-enable-prefix-caching")
        elif name in FLAGS and value is not None:
            found.append(f"--{FLAGS[name]}={value}")
        else:
            raise ValueError(
                f"--{name} is meant for every arm and has no known counterpart in vLLM; give it to the arms of SGLang alone "
                f"(--arm NAME:package,--{name}...), or use one of --{', --'.join(FLAGS)}, --disable-radix-cache"
            )
    return found


def pairs(flags: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Names and values of ``--name=value``, ``--name value`` and ``--name``."""
    words = list(flags)
    while words:
        name, equals, value = words.pop(0).removeprefix("--").partition("=")
        if equals:
            yield name, value
        else:
            yield name, words.pop(0) if words and not words[0].startswith("--") else None


def _with_accept_length(flag: str, environment: Mapping[str, str]) -> str:
    """The speculative flag with the accept length that the SGLang arms simulate, where they do."""
    name, _, value = flag.partition("=")
    length = environment.get("SGLANG_SIMULATE_ACC_LEN")
    if name != "--speculative-config" or length is None:
        return flag
    simulated = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": float(length)}
    return f"{name}={json.dumps({**json.loads(value), **simulated})}"
