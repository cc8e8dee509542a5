"""Prometheus's own parsers on /metrics: its text format, and whether the counters agree with what was asked."""

import math
import time
import urllib.request
from typing import Any

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.clients import asked
from tests.clients.rows import Row, main

OPEN = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8"
"""As Prometheus 3 asks. Without the escaping, prometheus_client writes names of types with a colon and those of samples without."""

POLLS = 20


class Metrics(Row):
    """The text format and OpenMetrics: they parse, histograms add up (under "chat"), and counters are right (under "usage")."""

    package = "prometheus-client"
    endpoint = "/metrics"

    def families(self, accepted: str = "text/plain", parse: Any = text_string_to_metric_families) -> dict[str, Any]:
        """The metric families by name in the format that is asked for, read by Prometheus's parser."""
        request = urllib.request.Request(f"{self.server.url}/metrics", headers={"Accept": accepted})
        with urllib.request.urlopen(request, timeout=60) as answer:
            asked.holds(answer.headers["Content-Type"], accepted.partition(";")[0])
            families = list(parse(answer.read().decode()))
        names = [family.name for family in families]
        asked.same(len(names), len(set(names)))
        return {family.name: family for family in families}

    def chat(self) -> None:
        families = self.families()
        asked.same(sorted(self.families(OPEN, openmetrics.text_string_to_metric_families)), sorted(families))
        untyped = [name for name, family in families.items() if family.type == "unknown" or not family.documentation]
        asked.same(untyped, [])
        histograms = [family for family in families.values() if family.type == "histogram"]
        if not histograms:
            raise AssertionError("no histogram")
        for family in histograms:
            buckets: dict[Any, list[tuple[float, float]]] = {}
            for sample in family.samples:
                if sample.name.endswith("_bucket"):
                    labels = tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))
                    buckets.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
            for counts in buckets.values():
                asked.same((counts, counts[-1][0]), (sorted(counts), math.inf))

    def usage(self) -> None:
        def totals() -> list[float]:
            families = self.families()
            return [
                sum(sample.value for sample in families[f"sglang:{kind}_tokens"].samples if sample.name.endswith("_total"))
                for kind in ("prompt", "generation")
            ]

        before, wanted = totals(), list(self.server.counts())
        for _ in range(POLLS):  # the counters may follow the answer
            found = [after - past for after, past in zip(totals(), before, strict=True)]
            if found == wanted:
                return
            time.sleep(0.5)
        asked.same(found, wanted)


if __name__ == "__main__":
    main([Metrics])
