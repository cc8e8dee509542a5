"""SGLang's own benchmark client, one repetition of a workload at a time."""

import functools
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark import latency, loads
from sglang_gemma4.benchmark.server import Died, Server, tail
from sglang_gemma4.benchmark.workloads import Workload

GRACE = 2.0  # seconds; a server that dies breaks its clients before it has ended
MARGIN = 1.3  # prompts are written longer than asked for, the client cuts them to the exact length


class Client:
    """The client's process; it imports SGLang while the servers start and runs the passes of all of them."""

    def __init__(self, folder: Path, environment: Mapping[str, str], dataset: Path | None, token_ids: bool = False) -> None:
        """``folder`` takes the client's log and results; ``dataset`` is a file in ShareGPT's format, or None for random words.

        With ``token_ids`` every workload is sent as loads are, to ``/v1/completions`` (``stream_client``): the way for vLLM too."""
        self.folder, self.dataset, self.token_ids = folder, dataset, token_ids
        self.log = folder / "client.log"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sglang_gemma4.benchmark.client_process"],
            # Tokenizer threads would not outlive the fork. 600 images took it 50 s beside five servers on 16 cores and 10 s on two idle
            # ones; that its threads waited for busy cores is likely, and not established.
            env={**os.environ, **environment, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("ab"),
            text=True,
        )
        self._answers: queue.Queue[str] = queue.Queue()  # "" once the process has closed its output
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_until_ready(self) -> None:
        """Wait for the import.

        Raises:
            ValueError: SGLang's client does not import here.
        """
        self._wait("does not start here")

    def prepare(self, passes: Sequence[tuple[Workload, int]], model: str) -> None:
        """Make the requests of these passes (a workload and a seed) once for all servers. Call it after :meth:`wait_until_ready`.

        Prompts without images are written and tokenized, the same for every seed. Requests with images are drawn, and kept.

        Raises:
            ValueError: SGLang's client does not tokenize for this model.
        """
        for workload, seed in passes:
            if workload.images:
                arguments = self._arguments(workload, "http://127.0.0.1:9", model, seed, self.folder / "drawn.jsonl")  # no server is up yet
                self._order({"arguments": [*arguments, "--ready-check-timeout-sec", "0"], "log": str(self.log), "draw": True})
                for _ in ("its process id", "its exit status"):
                    self._wait(f"cannot draw images for {model}")
        for workload, seed in passes:
            if self._streamed(workload):
                self._rows(workload, seed, model)
        if self.dataset is not None:
            return  # of a data set each pass draws its own share
        words = dict.fromkeys(workload for workload, _ in passes if not workload.images and not self._streamed(workload))
        self._order({"model": model, "prompts": [str(self._random_words(workload, model)) for workload in words]})
        self._wait(f"cannot tokenize for {model}")

    def _wait(self, failed: str) -> None:
        """Wait for an answer, whatever it says: a failed run of the client is for the pass that needs it to notice."""
        if not self._answers.get():
            last = (tail(self.log) or ["no output"])[-1]
            raise ValueError(f"SGLang's benchmark client {failed} (exit status {self.process.wait()}): {last}")

    def run(
        self, workload: Workload, server: Server, model: str, seed: int, limit: float, progress: Callable[[str], None]
    ) -> dict[str, Any]:
        """One pass of ``workload``: what a ``repetition`` record keeps of it.

        Raises:
            Died: the server ended meanwhile, the pass took more than ``limit`` seconds, or the client itself failed.
        """
        out = self.folder / "client.jsonl"
        out.unlink(missing_ok=True)
        streams = self.folder / "streams.json"
        streams.unlink(missing_ok=True)
        streamed = {"rows": str(self._rows(workload, seed, model)), "streams": str(streams)} if self._streamed(workload) else {}
        self._order({"arguments": self._arguments(workload, server.url, model, seed, out, server.engine), "log": str(self.log), **streamed})
        child = int(self._answer(server, limit, None, progress)["pid"])
        status = self._answer(server, limit, child, progress)["exit_status"]
        if status or not out.exists():
            raise self._failed(server, status)
        result = dict(json.loads(out.read_text().splitlines()[-1]))
        return latency.measured(result, json.loads(streams.read_text()), workload.rate) if streamed else measured(result)

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()

    def _order(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def _answer(self, server: Server, limit: float, child: int | None, progress: Callable[[str], None]) -> dict[str, Any]:
        started = told = time.monotonic()
        while True:
            try:
                line = self._answers.get(timeout=0.5)
            except queue.Empty:
                line = None
            if line:
                return dict(json.loads(line))
            if line == "":
                raise self._failed(server, self.process.wait())
            now = time.monotonic()
            if now - told >= 20:
                told = now
                progress(f"{now - started:.0f} s so far")
            try:
                server.check()
                if now - started > limit:
                    raise Died(None, tail(server.log))
            except Died:
                if child is not None:
                    os.kill(child, signal.SIGKILL)
                    self._answers.get()  # its exit status; it has failed with the server
                raise

    def _failed(self, server: Server, status: int) -> Died:
        """The failure to report: that of the server if it died, else that of the client."""
        time.sleep(GRACE)
        server.check()
        return Died(status, ["the server lives; SGLang's benchmark client ended, its log says:", *tail(self.log)])

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _streamed(self, workload: Workload) -> bool:
        return bool(workload.lengths) or (self.token_ids and not workload.images)

    def _rows(self, workload: Workload, seed: int, model: str) -> Path:
        """A file of the requests of one pass (``loads``)."""
        path = self.folder / f"rows-{workload.name.replace('/', '-')}-{workload.requests}x{workload.output_tokens}-{seed}.json"
        if not path.exists():
            path.write_text(json.dumps(loads.rows(workload, seed, _ordinary_tokens(model)[1])))
        return path

    def _arguments(self, workload: Workload, url: str, model: str, seed: int, out: Path, engine: str = "sglang") -> list[str]:
        words = ["--base-url", url, "--model", model, "--num-prompts", str(workload.requests), "--seed", str(seed)]
        words += ["--random-input-len", str(workload.input_tokens), "--random-output-len", str(workload.output_tokens)]
        words += ["--random-range-ratio", "1.0", "--output-file", str(out), "--output-details", "--disable-tqdm"]
        words += ["--flush-cache", "--warmup-requests", "0"]
        if workload.concurrency:
            words += ["--max-concurrency", str(workload.concurrency)]
        if workload.images:
            size = f"{workload.image_size}x{workload.image_size}"
            words += ["--backend", "sglang-oai-chat", "--dataset-name", "image", "--image-count", str(workload.images)]
            return [*words, "--image-resolution", size]
        if self._streamed(workload):
            return [*words, "--backend", f"{engine}-tokens", "--dataset-name", "random"]
        words += ["--backend", "sglang", "--dataset-name", "random", "--tokenize-prompt"]
        return [*words, "--dataset-path", str(self.dataset or self._random_words(workload, model))]

    def _random_words(self, workload: Workload, model: str) -> Path:
        """A file in ShareGPT's format, which keeps the client off the network: random tokens of the model's own vocabulary, as text."""
        path = self.folder / f"prompts-{workload.requests}x{workload.input_tokens}.json"
        if not path.exists():
            tokenizer, ordinary = _ordinary_tokens(model)
            rng = random.Random(0)
            length = int(workload.input_tokens * MARGIN) + 16
            texts = [tokenizer.decode(rng.choices(ordinary, k=length)) for _ in range(workload.requests)]
            turns = [{"conversations": [{"value": text}, {"value": "."}]} for text in texts]
            path.write_text(json.dumps(turns))
        return path


@functools.cache
def _ordinary_tokens(model: str) -> tuple[Any, list[int]]:
    """The tokenizer, and the ids of its tokens that have no meaning of their own."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return tokenizer, sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids) - set(tokenizer.added_tokens_decoder))


def measured(result: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the client's result that a ``repetition`` record keeps, in milliseconds, tokens and tokens/s."""
    done = [position for position, error in enumerate(result["errors"]) if not error and result["output_lens"][position]]
    # The client stamps a token when text arrives; a request whose tokens have no text (random weights) has no times, not zero ones.
    timed = [position for position in done if result["ttfts"][position] > 0]
    # The native client has one gap for each token after the first with text; the OpenAI one has one for each chunk, of any tokens.
    each = result.get("backend") == "sglang"
    gaps = [
        (sum(gaps), len(gaps) if each else result["output_lens"][position] - 1)
        for position, gaps in ((position, result["itls"][position]) for position in timed)
    ]
    return {
        "seconds": result["duration"],
        "completed": result["completed"],
        "failed": len(result["errors"]) - result["completed"],
        "errors": sorted({error[:200] for error in result["errors"] if error})[:3],
        "output_tokens": result["total_output_tokens"],
        "output_throughput": result["output_throughput"],
        "input_throughput": result["input_throughput"],
        "ttft_ms": [round(result["ttfts"][position] * 1000, 3) for position in timed],
        "tpot_ms": [round(seconds / tokens * 1000, 4) for seconds, tokens in gaps if tokens > 0],
    }
