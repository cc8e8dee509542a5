"""Requests of token ids to ``/v1/completions`` of SGLang or vLLM inside SGLang's benchmark client, with the time of every stream event.

SGLang's own client times text: it cannot see how many tokens an event of ``/v1/completions`` brings, nor one whose tokens have no text.
Both servers stream the token ids (``return_token_ids``), so one client times both alike. All else is SGLang's client: arrivals at the
times of a trace, concurrency, emptying the prefix cache, throughput. Runs in the client's process (``client_process``).
"""

import asyncio
import itertools
import json
import time
import traceback
from pathlib import Path
from typing import Any

Stream = dict[str, Any]
"""One request: ``sent`` (seconds since the first was sent), ``at`` (seconds, as planned; None for a later turn), ``asked`` (tokens),
``events`` (list of [seconds since it was sent, tokens]) and ``error``."""


class StreamClient:
    """Sends the rows of a load; :attr:`streams` has one entry per row, in the rows' order."""

    def __init__(self, serving: Any, rows: list[dict[str, Any]]) -> None:
        """``serving`` is ``sglang.benchmark.serving``."""
        self.serving, self.rows = serving, rows
        self.streams: list[Stream | None] = [None] * len(rows)
        self._answered: dict[tuple[int, int], asyncio.Future[list[int] | None]] = {}  # context after a turn; None: it failed
        self._first_sent: float | None = None

    def install(self) -> None:
        """Have this process's client send the rows, each at its time."""
        serving, replay = self.serving, self.serving.get_request
        for engine in ("sglang", "vllm"):  # the beginning of the name decides how the prefix cache is emptied
            serving.ASYNC_REQUEST_FUNCS[f"{engine}-tokens"] = self.send
            serving._BACKEND_API_PATHS[f"{engine}-tokens"] = "/v1/completions"
        serving.get_dataset = lambda *_: [
            serving.DatasetRow(row["ids"], row["prompt"], row["output"], timestamp=row["at"], extra_request_body={"row": index})
            for index, row in enumerate(self.rows)
        ]
        serving.get_request = lambda requests, rate: replay(requests, rate, use_trace_timestamps=True)

    async def send(self, request_func_input: Any, pbar: Any = None) -> Any:
        """One request of SGLang's client: what it makes of a row, and when the tokens came."""
        index = request_func_input.extra_request_body["row"]
        row = self.rows[index]
        output = self.serving.RequestFuncOutput.init_new(request_func_input)
        output.start_time = time.perf_counter()
        stream: Stream = {
            "sent": 0.0,
            "at": None if row.get("turn") else row["at"] / 1000,
            "asked": row["output"],
            "events": [],
            "error": "",
        }
        self.streams[index] = stream
        ids: list[int] | None = None
        try:
            prompt = await self._prompt(row)
            output.start_time = time.perf_counter()
            self._first_sent = self._first_sent if self._first_sent is not None else output.start_time
            stream["sent"] = output.start_time - self._first_sent
            ids = prompt + await self._stream(request_func_input, prompt, output.start_time, stream["events"])
            self._fill(output, stream)
        except Exception as error:
            output.error = stream["error"] = f"{type(error).__name__}: {error}" if str(error) else traceback.format_exc(limit=2)
            ids = None
        finally:
            if "turn" in row:
                self._turn(row["session"], row["turn"]).set_result(ids)
        return output

    def _turn(self, session: int, turn: int) -> "asyncio.Future[list[int] | None]":
        return self._answered.setdefault((session, turn), asyncio.get_running_loop().create_future())

    async def _prompt(self, row: dict[str, Any]) -> list[int]:
        """The prompt's ids; of a later turn once the answer before is there and the user has thought."""
        if not row.get("turn"):
            return list(row["ids"])
        context = await self._turn(row["session"], row["turn"] - 1)
        if context is None:
            raise RuntimeError("the turn before it failed")
        await asyncio.sleep(row["think"])
        return [*context, *row["ids"]]

    async def _stream(self, asked: Any, prompt: list[int], start: float, events: list[list[float]]) -> list[int]:
        """Send, note every event that brought tokens, return the tokens.

        Raises:
            RuntimeError: the server refused, or it does not say which tokens it generated.
        """
        body = {
            "model": asked.model,
            "prompt": prompt,
            "max_tokens": asked.output_len,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
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
                        events.append([now, len(new)])
        return tokens

    def _fill(self, output: Any, stream: Stream) -> None:
        """What SGLang's client reports of a request: its gaps are those between events."""
        times = [when for when, _ in stream["events"]]
        output.output_len = sum(int(count) for _, count in stream["events"])
        if output.output_len != stream["asked"]:
            raise RuntimeError(f"{output.output_len} of the {stream['asked']} tokens asked for came")
        output.ttft, output.latency, output.success = times[0], times[-1], True
        output.itl = [later - earlier for earlier, later in itertools.pairwise(times)]

    def write(self, path: Path) -> None:
        """The streams as one JSON list."""
        path.write_text(json.dumps(self.streams))
