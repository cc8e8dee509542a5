"""Samples SGLang's metrics, and the memory of the GPU or of the processes, while a workload runs."""

import contextlib
import math
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

PEAKS = {
    "full_pool_peak": "sglang:full_token_usage",
    "swa_pool_peak": "sglang:swa_token_usage",
    "running_peak": "sglang:num_running_reqs",
    "queue_peak": "sglang:num_queue_reqs",
}
GIB = 1024**3
METRICS_EVERY = 2.0
"""Seconds between two reads of ``/metrics``. SGLang renders them in the process that streams the answers, which then
wait about 25 ms. Two reads per second decided the 99th percentile of inter-token latency."""

# vLLM's names of the same quantities; each draft of a request is followed by its verification.
VLLM_NAMES = {
    "vllm:kv_cache_usage_perc": "sglang:full_token_usage",
    "vllm:num_requests_running": "sglang:num_running_reqs",
    "vllm:num_requests_waiting": "sglang:num_queue_reqs",
    "vllm:num_preemptions_total": "sglang:num_retracted_requests_total",
    "vllm:generation_tokens_total": "sglang:generation_tokens_total",
    "vllm:spec_decode_num_drafts_total": "sglang:spec_verify_calls_total",
}


def read_metrics(url: str) -> dict[str, float]:
    """One value per metric of a live ``/metrics``, summed over all labels except ``mode``, which joins the name: ``name[mode]``.

    vLLM's metrics get SGLang's names (:data:`VLLM_NAMES`)."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        text = response.read().decode()
    values: dict[str, float] = defaultdict(float)
    for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
        if not sample.name.endswith("_bucket"):
            mode = sample.labels.get("mode")
            name = VLLM_NAMES.get(sample.name, sample.name)
            values[f"{name}[{mode}]" if mode else name] += sample.value
    return dict(values)


@dataclass
class Watched:
    """The largest values of gauges (:data:`PEAKS` and ``memory_peak_gib``; None: never seen), and the growth of counters."""

    peaks: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys((*PEAKS, "memory_peak_gib")))
    added: dict[str, float] = field(default_factory=dict)

    @property
    def added_tokens(self) -> float | None:
        return self.added.get("sglang:generation_tokens_total")

    def accept_length(self, completed: int) -> float | None:
        """Tokens per request and verify step; None without speculation. The first token of each ``completed`` request is prefill's."""
        steps = self.added.get("sglang:spec_verify_calls_total", 0.0)
        return ((self.added_tokens or 0.0) - completed) / steps if steps else None


@contextlib.contextmanager
def watch(url: str, process: int, every: float = METRICS_EVERY) -> Iterator[Watched]:
    """Sample a server's metrics and the memory in use (``process``: its id) ``every`` so many seconds; counters are read at the end."""
    found, memory, before, done = Watched(), memory_in_use(process), read_metrics(url), threading.Event()

    def sample() -> None:
        while not done.wait(every):
            with contextlib.suppress(OSError):  # busy or dying; the caller notices a dead server
                values = read_metrics(url)
                for name, value in [
                    *((name, values.get(metric, math.nan)) for name, metric in PEAKS.items()),
                    ("memory_peak_gib", memory()),
                ]:
                    if not math.isnan(value):
                        found.peaks[name] = max(value, found.peaks[name] or 0.0)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
    with contextlib.suppress(OSError):  # the server has ended; the caller notices and records it
        found.added = {name: value - before.get(name, 0.0) for name, value in read_metrics(url).items()}


def memory_in_use(process: int) -> Callable[[], float]:
    """A function that returns the GiB in use on all visible GPUs or, without one, by ``process`` (an id) and its children."""
    with contextlib.suppress(Exception):  # no NVIDIA driver or library: measure the processes
        import pynvml

        pynvml.nvmlInit()
        if cards := [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]:
            return lambda: sum(pynvml.nvmlDeviceGetMemoryInfo(card).used for card in cards) / GIB

    def resident() -> float:
        import psutil

        total = 0
        with contextlib.suppress(psutil.Error):  # it has just ended
            for member in (parent := psutil.Process(process), *parent.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += member.memory_info().rss
        return total / GIB

    return resident
