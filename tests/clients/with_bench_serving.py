"""SGLang's own load generator on each backend that reaches this server; run by the server's environment."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.clients import asked
from tests.clients.rows import Row, ended, main

PROMPTS, TOKENS = 4, 12


class Load(Row):
    """sglang.bench_serving; every prompt has random tokens and every answer TOKENS of them."""

    package = "sglang"
    endpoint = "/v1/chat/completions"
    backend = "sglang-oai-chat"

    def load(self, *flags: str) -> Any:
        """The report of one load."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "report.jsonl"
            command = [sys.executable, "-m", "sglang.bench_serving", "--backend", self.backend, "--base-url", self.server.url]
            command += ["--model", self.server.model, "--tokenizer", self.server.model, "--dataset-name", "random-ids"]
            command += ["--num-prompts", str(PROMPTS), "--random-input-len", "16", "--random-output-len", str(TOKENS)]
            command += ["--random-range-ratio", "1", "--output-file", str(out), "--output-details", "--disable-tqdm", *flags]
            ended(command)
            return json.loads(out.read_text())

    def counted(self, *flags: str) -> None:
        """Every request is answered with as many tokens as it asked for."""
        report = self.load(*flags)
        asked.same([report["completed"], report["total_output_tokens"], report["errors"]], [PROMPTS, PROMPTS * TOKENS, [""] * PROMPTS])

    def streamed(self) -> None:
        self.counted()

    def errors(self) -> None:
        """Its first request, the warm-up, is refused: it ends, and its last words have the server's."""
        try:
            self.load("--extra-request-body", json.dumps({"temperature": asked.COLD}))
        except AssertionError as error:
            asked.holds(str(error), "temperature", str(asked.COLD), "400")
            return
        raise AssertionError("a temperature of -1 was served")


class Completions(Load):
    """The same on completions."""

    endpoint = "/v1/completions"
    backend = "sglang-oai"


class Native(Load):
    """The same on SGLang's own endpoint, where a temperature is a sampling parameter."""

    endpoint = "/generate"
    backend = "sglang"
    errors = None  # type: ignore[assignment]

    def chat(self) -> None:
        self.counted("--disable-stream")


if __name__ == "__main__":
    main([Load, Completions, Native])
