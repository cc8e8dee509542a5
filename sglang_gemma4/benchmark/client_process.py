"""What the processes of SGLang's benchmark client do: draw requests, or send those of one pass.

They are forked from a process that has imported the client (``client``). Token ids go to ``/generate`` of SGLang, or
as a *stream* to ``/v1/completions`` of SGLang or vLLM. SGLang's own client times text: it cannot see how many tokens
an event of ``/v1/completions`` brings, nor a token without text. Both servers stream the token ids
(``return_token_ids``), so one client times both alike. The rest is SGLang's client: arrivals at the times of a trace,
concurrency, emptying the prefix cache, throughput.
"""

import asyncio
import functools
import json
import os
import pickle
import sys
import time
import traceback
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Stream = dict[str, Any]
"""One request: ``sent`` (seconds since the first was sent), ``at`` (planned seconds; None for a later turn),
``asked`` (tokens), ``events`` (list of [seconds since it was sent, tokens]) and ``error``. A session with a shared
prompt adds ``cached`` (prompt tokens found in the server's cache, None if it does not say). Rows with ``keep`` add
their ``prompt`` and ``tokens`` (ids)."""


class DrawnError(Exception):
    """Ends SGLang's client once its requests are drawn."""


def draw(log: Path, asked: Sequence[tuple[Sequence[str], Path]]) -> None:
    """Have SGLang's client make the requests for each list of arguments, and write them to the path given with it."""
    serving = _serving(log)
    sample = serving.get_dataset
    serving.get_tokenizer = functools.cache(serving.get_tokenizer)
    for arguments, path in asked:

        def keep(*given: Any, path: Path = path) -> None:
            part = path.with_suffix(".part")
            part.write_bytes(pickle.dumps(sample(*given)))
            part.rename(path)
            raise DrawnError

        serving.get_dataset = keep
        sys.argv[1:] = arguments
        try:
            serving.cli_main()
        except DrawnError:
            continue


def run(log: Path, arguments: Sequence[str], requests: Path | list[dict[str, Any]], streams: Path | None) -> None:
    """Run one pass of SGLang's client. ``requests`` is a file that :func:`draw` wrote, or rows (``workloads``). With
    ``streams`` the rows are sent as streams, and the arrival times of their tokens are written to that file."""
    serving = _serving(log)
    # The requests are token ids already; a tokenizer takes seconds to load, and would only recount what the server
    # counts.
    serving.get_tokenizer = lambda *_, **__: SimpleNamespace(encode=lambda *_, **__: [0])
    serving.check_chat_template = lambda _: True
    sys.argv[1:] = arguments
    if isinstance(requests, Path):
        drawn = pickle.loads(requests.read_bytes())
        serving.get_dataset = lambda *_: drawn
    elif streams is None:
        serving.get_dataset = lambda *_: [serving.DatasetRow(row["ids"], row["prompt"], row["output"]) for row in requests]
    else:
        client = StreamClient(serving, requests)
        client.install()
    serving.cli_main()
    if streams is not None:
        streams.write_text(json.dumps(client.streams))


def _serving(log: Path) -> Any:
    """SGLang's client; what it prints goes to ``log``."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(out, stream)
    import sglang.benchmark.serving

    return sglang.benchmark.serving


def reset(url: str, limit: float = 20.0) -> None:
    """Empty vLLM's prefix cache. vLLM answers 200 with ``success`` false while requests that have just ended still hold blocks.

    Raises:
        RuntimeError: blocks were held for ``limit`` seconds.
    """
    ends = time.monotonic() + limit
    while True:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/reset_prefix_cache", method="POST"), timeout=limit) as response:
            if json.load(response)["success"]:
                return
        if time.monotonic() > ends:
            raise RuntimeError(f"vLLM did not empty its prefix cache within {limit:g} s: requests hold blocks of it")
        time.sleep(0.1)


def cached_tokens(answer: Mapping[str, Any]) -> int | None:
    """Prompt tokens that were in the cache, according to an answer or an event of a stream; None if it does not say."""
    details = (answer.get("sglext") or {}).get("cached_tokens_details")
    if details:
        return sum(int(details.get(place) or 0) for place in ("device", "host", "storage"))
    usage = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    return usage.get("cached_tokens")


class StreamClient:
    """Sends rows as streams; :attr:`streams` has one entry per row, in the rows' order."""

    def __init__(self, serving: Any, rows: list[dict[str, Any]]) -> None:
        """``serving`` is the module ``sglang.benchmark.serving``."""
        self.serving, self.rows = serving, rows
        self.streams: list[Stream | None] = [None] * len(rows)
        self._answered: dict[tuple[int, int], asyncio.Future[list[int] | None]] = {}  # context after a turn; None: the turn failed
        self._first_sent: float | None = None

    def install(self) -> None:
        """Have this process's client send the rows, each at its time."""
        serving, replay = self.serving, self.serving.get_request
        for engine in ("sglang", "vllm"):  # the name's beginning decides how the prefix cache is emptied
            serving.ASYNC_REQUEST_FUNCS[f"{engine}-tokens"] = self.send
            serving._BACKEND_API_PATHS[f"{engine}-tokens"] = "/v1/completions"
        serving.get_dataset = lambda *_: [
            serving.DatasetRow(row["ids"], row["prompt"], row["output"], timestamp=row["at"], extra_request_body={"row": index})
            for index, row in enumerate(self.rows)
        ]
        serving.get_request = lambda requests, rate: replay(requests, rate, use_trace_timestamps=True)
        flush = serving.flush_server_cache
        serving.flush_server_cache = lambda url, backend, *more: reset(url) if backend.startswith("vllm") else flush(url, backend, *more)

    async def send(self, request_func_input: Any, pbar: Any = None) -> Any:
        """Send one request of SGLang's client; returns its result, and stores when the tokens came."""
        index = request_func_input.extra_request_body["row"]
        row = self.rows[index]
        output = self.serving.RequestFuncOutput.init_new(request_func_input)
        at = None if row.get("turn") else row["at"] / 1000
        stream: Stream = {"sent": 0.0, "at": at, "asked": row["output"], "events": [], "error": ""}
        self.streams[index] = stream
        ids: list[int] | None = None
        try:
            prompt = await self._context(row) + row["ids"]
            output.start_time = time.perf_counter()
            self._first_sent = self._first_sent if self._first_sent is not None else output.start_time
            stream["sent"] = output.start_time - self._first_sent
            tokens = await self._stream(request_func_input, prompt, output.start_time, stream, "shared" in row)
            output.output_len = len(tokens)
            if len(tokens) != row["output"]:
                raise RuntimeError(f"{len(tokens)} of the {row['output']} tokens asked for came")
            output.ttft, output.latency, output.success = stream["events"][0][0], stream["events"][-1][0], True
            ids = prompt + tokens
            if row.get("keep"):
                stream |= {"prompt": prompt, "tokens": tokens}
        except Exception as error:
            output.error = stream["error"] = f"{type(error).__name__}: {error}" if str(error) else traceback.format_exc(limit=2)
        if "turn" in row:
            self._turn(row["session"], row["turn"]).set_result(ids)
        return output

    def _turn(self, session: int, turn: int) -> "asyncio.Future[list[int] | None]":
        return self._answered.setdefault((session, turn), asyncio.get_running_loop().create_future())

    async def _context(self, row: dict[str, Any]) -> list[int]:
        """The conversation before a later turn; waits for its last answer and then for the think time."""
        if not row.get("turn"):
            return []
        context = await self._turn(row["session"], row["turn"] - 1)
        if context is None:
            raise RuntimeError("the turn before it failed")
        await asyncio.sleep(row["think"])
        return context

    async def _stream(self, asked: Any, prompt: list[int], start: float, stream: Stream, cached: bool) -> list[int]:
        """Send a request, record every event that brought tokens (with ``cached`` also the cached ones), and return the tokens.

        Raises:
            RuntimeError: the server refused, or it does not say which tokens it generated.
        """
        body = {"model": asked.model, "prompt": prompt, "max_tokens": asked.output_len, "temperature": 0.0}
        body |= {"ignore_eos": True, "stream": True, "return_token_ids": True}
        if cached:
            body |= {"return_cached_tokens_details": True, "stream_options": {"include_usage": True}}
            stream["cached"] = None
        tokens: list[int] = []
        async with self.serving._create_bench_client_session() as session, session.post(url=asked.api_url, json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"HTTP {response.status}: {await response.text()}")
            async for line in response.content:
                data = line.strip().removeprefix(b"data: ")
                if not line.startswith(b"data: ") or data == b"[DONE]":
                    continue
                now = time.perf_counter() - start
                event = json.loads(data)
                if "error" in event:
                    raise RuntimeError(f"the server ended the stream: {event['error']}")
                for choice in event["choices"]:
                    if choice.get("token_ids") is None and choice.get("text"):
                        raise RuntimeError("the server streams no token ids (return_token_ids); it is too old for this client")
                    if new := choice.get("token_ids"):
                        tokens += new
                        stream["events"].append([now, len(new)])
                if cached and (found := cached_tokens(event)) is not None:
                    stream["cached"] = found
        return tokens
