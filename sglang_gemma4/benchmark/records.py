"""The raw lines of a run: one JSON object per line, written as soon as it is measured, so that a killed run can be resumed.

Every line has ``kind`` and ``time`` (UTC, ISO 8601). The kinds and what else they hold:

``header``      what was asked for; written by every invocation, the resuming ones too
    ``command`` list · ``model`` · ``dummy_weights`` bool · ``dry_run`` bool · ``rounds``
    · ``repetitions`` (counted ones of an arm and workload)
    · ``arms`` list of {``name``, ``environment`` {}, ``arguments`` []}, the first is the baseline
    · ``workloads`` list of {``name``, ``input_tokens``, ``output_tokens``, ``requests``, ``concurrency``, ``images``, ``image_size``}
    and of loads ``lengths``, ``rate``, ``scale``, of sessions also ``sessions``, ``turns``, ``think`` (seconds)
    · ``limits`` {``ttft_ms``, ``itl_ms``} (of goodput; only with open-loop loads)
    · ``batches`` list (step times) · ``versions`` {name: version, ``commit``, ``sources`` (a digest)}
    · ``device`` {``name``, ``count``, ``memory_gib``, ``driver``}
    · ``environment`` {} · ``notes`` list of sentences
``start``       a server or engine of an arm is up
    ``arm`` · ``round`` · ``process`` ("server", "engine", "vllm") · ``seconds``
    · ``settings`` {name: value}, all that is compared between arms · ``patches`` {name: state}
    · ``graphs`` {``sizes`` (captured for decode or verify steps), ``seconds`` {phase: s}, ``gb`` {phase: GB}}; older records lack it
``repetition``  one pass of a workload through SGLang's benchmark client
    ``arm`` · ``round`` · ``workload`` · ``repetition`` · ``counted`` (False: warm-up) · ``seconds`` · ``completed`` · ``failed``
    · ``output_tokens`` · ``output_throughput`` (tokens/s) · ``input_throughput`` (tokens/s)
    · ``missing_tokens`` (only where the server generated fewer than the client believes; the tokens and rate above are the server's)
    · ``ttft_ms`` and ``tpot_ms`` (lists, one value per request) · ``accept_length`` (tokens per verify step, or None)
    · ``full_pool_peak`` and ``swa_pool_peak`` (fraction in use, or None) · ``running_peak`` and ``queue_peak`` (requests)
    · of a pass that was sent as token ids (loads; every workload of a run with a vLLM arm): ``requests_per_second`` (completed)
    · ``itl_ms``, ``token_itl_ms``, ``admitting_itl_ms`` and ``pure_itl_ms`` {``p50``, ``p90``, ``p99``, ``mean``, ``max``, ``count``}, see
    :mod:`sglang_gemma4.benchmark.latency` · ``tokens_per_event`` · in open loop ``rate`` (requests/s) and ``late_ms`` (99th percentile of
    how late the client sent)
    · of sessions: ``sessions`` {``ttft_ms`` {kind of turn: list}, ``computed`` {kind of turn: prompt tokens, mean}, ``prompt_tokens``,
    ``cached_tokens``}, ``pools`` {name: growth of a counter}, see :mod:`sglang_gemma4.benchmark.session_report`, and of an arm's first
    pass ``warm_check``, see :mod:`sglang_gemma4.benchmark.warm_check` (or ``why`` there is none)
    · ``retractions`` (requests) · ``prefill_tokens`` (computed, or None) · ``memory_peak_gib``
``step``        step times of the offline engine at one batch size
    ``arm`` · ``round`` · ``batch`` · ``repetition`` · ``counted`` · ``input_tokens`` · ``output_tokens`` (per request) · ``prefill_ms``
    (None where prompts are prefilled once) · ``cached_tokens`` (found in the prefix cache, of all requests) · ``step_ms`` (one decode or
    verify step) · ``output_throughput`` (tokens/s while decoding) · ``accept_length``
    · ``adapters`` (only under LoRA: how many of them the batch's requests use)
``curve``       step times of the offline engine at every batch size up to one, in one pass, see :mod:`sglang_gemma4.benchmark.step_curve`
    ``arm`` · ``round`` · ``batch`` (the largest) · ``repetition`` · ``counted`` · ``input_tokens`` · ``tokens_between`` (two ends)
    · ``seconds`` (of decoding) · ``points`` list of [batch size, steps, milliseconds a step] · ``accept_length``
``profile``     kernels of one stage, summed over ``steps`` steps
    ``arm`` · ``stage`` ("prefill", "decode") · ``batch`` · ``context_tokens`` (per request)
    · ``tokens_per_request`` (query tokens in a step; 1, or draft tokens) · ``steps``
    · ``kernels`` list of {``name``, ``category``, ``microseconds``, ``launches``}; a kernel's microseconds begin where the one before it
    on its stream ended
    · ``busy_microseconds`` (of the steps, with a kernel on any stream; None on the CPU). Records without this key are older: their
    kernels' microseconds are whole durations, which overlap under programmatic dependent launch
    · ``stages`` (decode on a GPU, else None or absent) microseconds of all steps: {``busy`` {``draft``, ``verify``, ``other``}, ``idle``,
    ``wall``, ``host``, ``loop`` and ``calls`` (list of {``name``, ``microseconds``, ``calls``}; both absent in older records), ``steps``},
    see :func:`sglang_gemma4.benchmark.stages.of_decode`
    · ``roofline`` None or {``bandwidth_gbs``, ``teraflops``, ``source``,
    ``categories`` list of {``category``, ``bytes``, ``flops``, ``microseconds``}}, per step: the least that must be moved and computed,
    and the time this GPU needs for it
``crash``       an arm's process died; the run goes on without it
    ``arm`` · ``round`` · ``during`` ("start of the engine", "start of the server", a workload's name, "step batch 8", "profile batch 8")
    · ``exit_status`` (negative: the signal; None: it hung) · ``log_tail`` list · ``why`` (only where the runner declined to try)
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Record = dict[str, Any]

NAME = "raw.jsonl"
KINDS = ("header", "start", "repetition", "step", "profile", "crash", "curve")


def append(path: Path, kind: str, **values: Any) -> Record:
    """Write one line and return it; the line is on disk when this returns.

    Raises:
        ValueError: ``kind`` is not in :data:`KINDS`.
    """
    if kind not in KINDS:
        raise ValueError(f"record kind {kind!r} is not one of {', '.join(KINDS)}")
    record = {"kind": kind, "time": datetime.now(UTC).isoformat(timespec="seconds"), **values}
    if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        with path.open("r+b") as file:  # a killed process left an incomplete last line, which this record must not continue
            file.truncate(content.rfind(b"\n") + 1)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
    return record


def read(path: Path) -> list[Record]:
    """All complete lines of ``path``, none if it does not exist; an incomplete last line is left out.

    Raises:
        ValueError: a line before the last is not JSON.
    """
    found: list[Record] = []
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}:{number} is not a JSON line ({error}); mend or remove it, then run again") from None
    return found
