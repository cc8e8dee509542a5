"""SGLang's real HTTP application in front of the scripted engine: what a client of each route gets."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import scripted_server  # type: ignore[import-not-found]


class Server:
    """The application with the endpoints of one scripted engine."""

    def __init__(self, endpoints: Any = None) -> None:
        from sglang.srt.entrypoints.http_server import app
        from sglang.srt.entrypoints.ollama.serving import OllamaServing

        self.endpoints = endpoints or scripted_server.Endpoints()
        self.engine = self.endpoints.engine
        self.app = app
        app.state.openai_serving_chat = self.endpoints.chat
        app.state.openai_serving_completion = self.endpoints.completions
        app.state.openai_serving_responses = self.endpoints.responses
        app.state.anthropic_serving = self.endpoints.messages
        app.state.ollama_serving = OllamaServing(self.engine)

    def write(self, script: str, size: int = 0, finish: str = "stop", matched: Any = 106, error: Exception | None = None) -> None:
        """What the model writes next, streamed in pieces of ``size`` characters."""
        self.engine.script, self.engine.size, self.engine.finish, self.engine.matched = script, size, finish, matched
        self.engine.error = error

    def post(self, path: str, body: Any, method: str = "POST") -> tuple[int, str]:
        """The status and body of an answer; ``body`` is sent as JSON, a text as it is."""
        return asyncio.run(self._post(path, body, method))

    def ask(self, path: str, **body: Any) -> tuple[int, Any]:
        """The status and the parsed answer of a route that does not stream."""
        status, text = self.post(path, body)
        return status, json.loads(text)

    def lines(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The objects of a streamed answer, one a line or one an event."""
        status, text = self.post(path, {**body, "stream": True})
        assert status == 200, (status, text)
        found = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("{", "data: {"))]
        return [json.loads(line) for line in found]

    async def _post(self, path: str, body: Any, method: str) -> tuple[int, str]:
        import httpx

        sent: Mapping[str, Any] = {"content": body} if isinstance(body, str) else {"json": body}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            answer = await client.request(method, path, **({} if method == "GET" else sent))
            return answer.status_code, answer.text
