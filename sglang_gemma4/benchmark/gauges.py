"""What is sampled while a workload runs: SGLang's metrics, and memory of the card or of the processes."""

import contextlib
import math
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType

PEAKS = {
    "full_pool_peak": "sglang:full_token_usage",
    "swa_pool_peak": "sglang:swa_token_usage",
    "running_peak": "sglang:num_running_reqs",
    "queue_peak": "sglang:num_queue_reqs",
}
GIB = 1024**3

# vLLM's names of the same quantities: a draft of one request is followed by its verification.
VLLM_NAMES = {
    "vllm:kv_cache_usage_perc": "sglang:full_token_usage",
    "vllm:num_requests_running": "sglang:num_running_reqs",
    "vllm:num_requests_waiting": "sglang:num_queue_reqs",
    "vllm:num_preemptions_total": "sglang:num_retracted_requests_total",
    "vllm:generation_tokens_total": "sglang:generation_tokens_total",
    "vllm:spec_decode_num_drafts_total": "sglang:spec_verify_calls_total",
}


def read_metrics(url: str) -> dict[str, float]:
    """One value for each metric of a live ``/metrics``, summed over its labels but ``mode``, which joins the name: ``name[mode]``.

    Those of vLLM have SGLang's names (:data:`VLLM_NAMES`)."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        text = response.read().decode()
    values: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                mode = sample.labels.get("mode")
                name = VLLM_NAMES.get(sample.name, sample.name)
                values[f"{name}[{mode}]" if mode else name] += sample.value
    return dict(values)


class Watch:
    """Samples a server's metrics during a ``with`` block: :attr:`peaks` of gauges, and what was :attr:`added` to counters."""

    def __init__(self, url: str, memory: Callable[[], float], every: float = 0.5) -> None:
        """``memory`` returns GiB in use; ``every`` is in seconds."""
        self.url, self.memory, self.every = url, memory, every
        self.peaks: dict[str, float] = {}
        self.added: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._before = read_metrics(self.url)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        try:
            after = read_metrics(self.url)
        except OSError:
            return  # the server is gone; the caller notices and records it
        self.added = {name: value - self._before.get(name, 0.0) for name, value in after.items()}

    def _run(self) -> None:
        while not self._done.wait(self.every):
            try:
                values = read_metrics(self.url)
            except OSError:
                continue  # busy or dying; the caller notices a dead server
            for name, metric in PEAKS.items():
                self._keep(name, values.get(metric, math.nan))
            self._keep("memory_peak_gib", self.memory())

    def _keep(self, name: str, value: float) -> None:
        if not math.isnan(value):
            self.peaks[name] = max(value, self.peaks.get(name, value))


def accept_length(added: dict[str, float], completed: int) -> float | None:
    """Tokens per request and verify step over a repetition; None without speculation. Each request's first token comes from its prefill."""
    steps = added.get("sglang:spec_verify_calls_total", 0.0)
    tokens = added.get("sglang:generation_tokens_total", 0.0)
    return (tokens - completed) / steps if steps else None


def memory_in_use(process: int) -> Callable[[], float]:
    """A function that returns GiB in use: of all visible cards, or, without one, of ``process`` (an id) and its children."""
    try:
        import pynvml

        pynvml.nvmlInit()
        cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        if cards:
            return lambda: sum(pynvml.nvmlDeviceGetMemoryInfo(card).used for card in cards) / GIB
    except Exception:  # no NVIDIA driver or library: measure the processes
        pass
    return lambda: _resident(process) / GIB


def _resident(process: int) -> int:
    """Bytes of a process and its children; those that have just ended count nothing."""
    import psutil

    total = 0
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(process)
        for member in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += member.memory_info().rss
    return total
