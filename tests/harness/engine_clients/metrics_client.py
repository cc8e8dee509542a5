"""Send a group and read what /metrics would answer after each request: ``client="metrics_client:send"``.

The requests go one after the other, or with ``extra["together"]`` at once. ``meta_info["counters"]`` of an answer holds every counter of
this package by its name.
"""

from typing import Any

from tests.harness import nursery


def send(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """Each request alone, or all at once."""
    found: list[dict[str, Any]] = []
    if group["extra"].get("together"):
        found = nursery.send(engine, group)
        for answer in found:
            answer["meta_info"]["counters"] = counters()
        return found
    for prompt in group["prompts"]:
        (answer,) = nursery.send(engine, {**group, "prompts": [prompt]})
        answer["meta_info"]["counters"] = counters()
        found.append(answer)
    return found


def counters() -> dict[str, float]:
    """Counters of the processes that write to ``PROMETHEUS_MULTIPROC_DIR``, as SGLang's /metrics collects them."""
    from prometheus_client import CollectorRegistry, multiprocess

    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    samples = (sample for family in registry.collect() if family.type == "counter" for sample in family.samples)
    return {sample.name: sample.value for sample in samples if sample.name.startswith("sglang:gemma4_")}
