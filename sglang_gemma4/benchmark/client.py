"""Runs SGLang's own benchmark client, one pass of a workload at a time."""

import json
import multiprocessing
import multiprocessing.forkserver
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark import client_process, latency, session_report, sessions, workloads
from sglang_gemma4.benchmark.server import Died, Server, tail
from sglang_gemma4.benchmark.workloads import Workload

GRACE = 2.0  # seconds; a dying server breaks its clients before it has ended


class Client:
    """Runs passes in processes forked from one that imports SGLang while the servers start (:mod:`multiprocessing.forkserver`)."""

    def __init__(self, folder: Path, environment: Mapping[str, str], model: str, dataset: Path | None, token_ids: bool = False) -> None:
        """``folder`` takes the client's log and results; ``dataset`` is a file in ShareGPT's format, or None for random tokens.

        With ``token_ids`` every workload is sent like a load, as streams to ``/v1/completions``, which vLLM serves
        too."""
        self.folder, self.model, self.dataset, self.token_ids = folder, model, dataset, token_ids
        self.log = folder / "client.log"
        self._first, self._vocabulary = 0, [0]  # tokens of prompts
        self._encode: sessions.Encode = lambda _: [0]
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["sglang.benchmark.serving"])
        own = dict(os.environ)
        # Threads would not survive a fork; SGLang's import warnings are kept off this terminal.
        os.environ.update(environment, TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            os.environ.clear()
            os.environ.update(own)

    def prepare(self, passes: Sequence[tuple[Workload, int]]) -> None:
        """Wait for the import, and draw the slow parts (images, a data set) of these passes (a workload and a seed) once for all servers.

        Raises:
            ValueError: SGLang's client does not import here, or cannot draw for this model.
        """
        asked = []
        for workload, seed in passes:
            if self._drawn(workload) and not (path := self._requests(workload, seed)).exists():
                nowhere = ["--base-url", "http://127.0.0.1:9", "--ready-check-timeout-sec", "0"]  # no server is up yet
                asked.append(([*nowhere, *self._arguments(workload, seed)], path))
        process = self._context.Process(target=client_process.draw, args=(self.log, asked), daemon=True)
        process.start()
        if not all(self._drawn(workload) for workload, _ in passes):
            self._first, self._vocabulary, self._encode = _tokens(self.model)
        process.join()
        if process.exitcode:
            last = (tail(self.log) or ["no output"])[-1]
            raise ValueError(f"SGLang's benchmark client does not work here for {self.model} (exit status {process.exitcode}): {last}")

    def run(self, workload: Workload, server: Server, seed: int, limit: float, progress: Callable[[str], None]) -> dict[str, Any]:
        """Run one pass of ``workload``; returns the fields of its ``repetition`` record, and for sessions ``kept`` for ``warm_check``.

        Raises:
            Died: the server ended meanwhile, the pass took more than ``limit`` seconds, or the client itself failed.
        """
        out, streams = self.folder / "client.jsonl", self.folder / "streams.json"
        out.unlink(missing_ok=True)
        streamed = self._streamed(workload)
        words = [*self._arguments(workload, seed, server.engine), "--base-url", server.url, "--output-file", str(out)]
        rows = [] if self._drawn(workload) else self._rows(workload, seed)
        for row in rows if not streamed else []:
            row["ids"][0] = self._first
        given = (self.log, words, rows or self._requests(workload, seed), streams if streamed else None)
        process = self._context.Process(target=client_process.run, args=given, daemon=True)
        process.start()
        started = told = time.monotonic()
        try:
            while process.exitcode is None:
                process.join(0.5)
                now = time.monotonic()
                if now - told >= 20:
                    told = now
                    progress(f"{now - started:.0f} s so far")
                if process.exitcode is None:
                    server.check()
                    if now - started > limit:
                        raise Died(None, server.last_words())
        finally:
            process.kill()
        if process.exitcode or not out.exists():  # report the server's failure if it died, else the client's
            time.sleep(GRACE)
            server.check()
            raise Died(process.exitcode, ["the server lives; SGLang's benchmark client ended, its log says:", *tail(self.log)])
        result = dict(json.loads(out.read_text().splitlines()[-1]))
        if not streamed:
            return measured(result)
        found = json.loads(streams.read_text())
        return latency.measured(result, found, workload.rate) | (session_report.measured(rows, found) if workload.sessions else {})

    def _rows(self, workload: Workload, seed: int) -> list[workloads.Row]:
        if workload.sessions:
            return sessions.rows(workload, seed, self._vocabulary, self._encode)
        return workloads.rows(workload, seed, self._vocabulary)

    def _drawn(self, workload: Workload) -> bool:
        """Whether SGLang's client makes the requests; otherwise they are rows (``workloads``)."""
        return bool(workload.images or self.dataset)

    def _streamed(self, workload: Workload) -> bool:
        return bool(workload.lengths) or (self.token_ids and not workload.images)

    def _requests(self, workload: Workload, seed: int) -> Path:
        return self.folder / f"requests-{workload.name.replace('/', '-')}-{seed}.pickle"

    def _arguments(self, workload: Workload, seed: int, engine: str = "sglang") -> list[str]:
        backend = f"{engine}-tokens" if self._streamed(workload) else "sglang-oai-chat" if workload.images else "sglang"
        words = ["--model", self.model, "--tokenizer", self.model, "--num-prompts", str(workload.requests), "--seed", str(seed)]
        words += ["--random-input-len", str(workload.input_tokens), "--random-output-len", str(workload.output_tokens)]
        words += ["--random-range-ratio", "1.0", "--output-details", "--disable-tqdm", "--flush-cache", "--warmup-requests", "0"]
        words += ["--backend", backend, "--dataset-name", "image" if workload.images else "random"]
        if workload.concurrency:
            words += ["--max-concurrency", str(workload.concurrency)]
        if workload.images:
            size = f"{workload.image_size}x{workload.image_size}"
            return [*words, "--image-count", str(workload.images), "--image-resolution", size]
        return [*words, "--tokenize-prompt", "--dataset-path", str(self.dataset)] if self.dataset else words


def _tokens(model: str) -> tuple[int, list[int], sessions.Encode]:
    """(id that a tokenised text begins with, ids of the tokens without a special meaning, function from text to ids)."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    ordinary = set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids) - set(tokenizer.added_tokens_decoder)
    return tokenizer.encode("a")[0], sorted(ordinary), lambda text: list(tokenizer.encode(text, add_special_tokens=False))


def measured(result: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the client's result that a ``repetition`` record keeps, in milliseconds, tokens and tokens/s."""
    # The client stamps a token when text arrives; a request whose tokens have no text (random weights) has no times
    # rather than zeros.
    each = zip(result["errors"], result["output_lens"], result["ttfts"], result["itls"], strict=True)
    timed = [(tokens, first, gaps) for error, tokens, first, gaps in each if not error and tokens and first > 0]
    # The native client has one gap per token after the first with text; the OpenAI client has one per chunk, whatever
    # its tokens.
    native = result.get("backend") == "sglang"
    spans = [(sum(gaps), len(gaps) if native else tokens - 1) for tokens, _, gaps in timed]
    return {
        "seconds": result["duration"],
        "completed": result["completed"],
        "failed": len(result["errors"]) - result["completed"],
        "errors": sorted({error[:200] for error in result["errors"] if error})[:3],
        "output_tokens": result["total_output_tokens"],
        "output_throughput": result["output_throughput"],
        "input_throughput": result["input_throughput"],
        "ttft_ms": [round(first * 1000, 3) for _, first, _ in timed],
        "tpot_ms": [round(seconds / tokens * 1000, 4) for seconds, tokens in spans if tokens > 0],
    }
