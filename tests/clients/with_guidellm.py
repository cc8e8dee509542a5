"""GuideLLM's load on the three endpoints of OpenAI that it knows."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.clients import asked
from tests.clients.rows import Row, ended, main

REQUESTS, TOKENS = 4, 12


class Chat(Row):
    """guidellm run; every answer must have TOKENS tokens and be streamed."""

    package = "guidellm"
    endpoint = "/v1/chat/completions"

    def load(self, **backend: Any) -> Any:
        """The metrics of one load."""
        options = {"kind": "openai_http", "target": self.server.url, "model": self.server.model, "request_format": self.endpoint, **backend}
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "report.json"
            command = [sys.executable, "-m", "guidellm", "run", "--backend", json.dumps(options)]
            command += ["--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={REQUESTS}"]
            command += ["--data", f"kind=synthetic_text,prompt_tokens=16,output_tokens={TOKENS}", "--disable-console"]
            ended([*command, "--output", f"kind=json,path={out}"])
            (benchmark,) = json.loads(out.read_text())["benchmarks"]
            return benchmark["metrics"]

    def counted(self, metrics: Any) -> None:
        """Every request succeeded with all its tokens."""
        totals = metrics["request_totals"]
        asked.same((totals["successful"], totals["errored"]), (REQUESTS, 0))
        self.counts(metrics["output_token_count"]["successful"])

    def counts(self, tokens: Any) -> None:
        """An answer goes on to its limit, since GuideLLM sends ``ignore_eos``."""
        asked.same(tokens["mean"], TOKENS)

    def chat(self) -> None:
        self.counted(self.load(stream=False))

    def streamed(self) -> None:
        metrics = self.load()
        self.counted(metrics)
        if not metrics["time_to_first_token_ms"]["successful"]["mean"] > 0:
            raise AssertionError("no time to the first token")

    def errors(self) -> None:
        totals = self.load(extras={"body": {"temperature": asked.COLD}})["request_totals"]
        asked.same((totals["successful"], totals["errored"] > 0), (0, True))


class Completions(Chat):
    """The same on completions."""

    endpoint = "/v1/completions"
    errors = chat = None  # type: ignore[assignment]


class Responses(Chat):
    """The same on responses."""

    endpoint = "/v1/responses"
    errors = chat = None  # type: ignore[assignment]

    def counts(self, tokens: Any) -> None:
        """GuideLLM sends no ``ignore_eos`` here: an answer may end before its limit."""
        asked.same(0 < tokens["min"] <= tokens["max"] <= TOKENS, True)


if __name__ == "__main__":
    main([Chat, Completions, Responses])
