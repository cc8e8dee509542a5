"""Ollama's own client on /api/chat and /api/generate."""

import json
from typing import Any

import ollama

from tests.clients import asked
from tests.clients.rows import Row, main
from tests.clients.town import Town


class Client(Row):
    """What both endpoints share; ``said`` and ``thought`` name where an answer has its text."""

    package = "ollama"

    def __init__(self, server: asked.Endpoint) -> None:
        super().__init__(server)
        self.client = ollama.Client(host=server.url)

    def ask(self, question: Any = asked.QUESTION, limit: int = asked.LONG, temperature: float = 0, **options: Any) -> Any:
        """One answer at temperature 0."""
        raise NotImplementedError

    def text(self, answer: Any) -> str:
        """What an answer, or a piece of one, says."""
        raise NotImplementedError

    def thought(self, answer: Any) -> str:
        """What an answer, or a piece of one, thinks."""
        raise NotImplementedError

    def chat(self) -> None:
        answer = self.ask(seed=1, top_k=0)
        asked.same((self.text(answer), answer.done, answer.done_reason), (asked.ANSWER, True, "stop"))
        for unlimited in (-1, -2):
            asked.same(self.text(self.ask(limit=unlimited)), asked.ANSWER)
        cut = self.ask(limit=asked.SHORT)
        asked.same((cut.done_reason, asked.ANSWER.startswith(self.text(cut))), ("length", True))

    def streamed(self) -> None:
        pieces = list(self.ask(stream=True))
        asked.same("".join(map(self.text, pieces)), asked.ANSWER)
        asked.same([(piece.done, piece.done_reason) for piece in pieces][-1], (True, "stop"))
        cut = list(self.ask(limit=asked.SHORT, stream=True))
        asked.same(("".join(map(self.text, cut)), cut[-1].done_reason), (self.text(self.ask(limit=asked.SHORT)), "length"))

    def structured(self) -> None:
        asked.fits(json.loads(self.text(self.ask(format=asked.SCHEMA))))
        whole = Town.model_validate_json(self.text(self.ask(format=Town.model_json_schema())))
        pieces = self.ask(format=Town.model_json_schema(), stream=True)
        asked.same(Town.model_validate_json("".join(map(self.text, pieces))), whole)

    def thinking(self) -> None:
        answer = self.ask(think=True)
        asked.same((self.text(answer), self.thought(answer)), (asked.ANSWER, asked.THOUGHT))
        pieces = list(self.ask(think=True, stream=True))
        asked.same(("".join(map(self.text, pieces)), "".join(map(self.thought, pieces))), (asked.ANSWER, asked.THOUGHT))

    def errors(self) -> None:
        for ask in (self.ask, lambda **bad: list(self.ask(stream=True, **bad))):
            try:
                ask(temperature=asked.COLD)
            except ollama.ResponseError as error:
                asked.same(error.status_code, 400)
                asked.holds(error.error, "temperature", str(asked.COLD))
            else:
                raise AssertionError("a temperature of -1 was served")

    def usage(self) -> None:
        *_, last = self.ask(stream=True, think=True)
        wanted = self.server.counts(chat_template_kwargs={"enable_thinking": True})
        for answer in (self.ask(think=True), last):
            asked.same((answer.prompt_eval_count, answer.eval_count), wanted)
            if not answer.total_duration:
                raise AssertionError("no total_duration")
        if self.client.list().models[0].model != self.server.model:
            raise AssertionError(f"/api/tags names {self.client.list().models[0].model}")


class Chat(Client):
    """chat."""

    endpoint = "/api/chat"

    def ask(self, question: Any = asked.QUESTION, limit: int = asked.LONG, temperature: float = 0, **options: Any) -> Any:
        limits = {"temperature": temperature, "num_predict": limit}
        limits |= {key: options.pop(key) for key in ("seed", "top_k") if key in options}
        messages = question if isinstance(question, list) else [{"role": "user", "content": question}]
        return self.client.chat(model=self.server.model, messages=messages, options=limits, **options)

    def text(self, answer: Any) -> str:
        return answer.message.content or ""

    def thought(self, answer: Any) -> str:
        return answer.message.thinking or ""

    def tools(self) -> None:
        messages: list[Any] = [{"role": "user", "content": asked.WEATHER}]
        whole = self.ask(messages, tools=asked.TOOLS)
        pieces = list(self.ask(messages, tools=asked.TOOLS, stream=True))
        for calls in (whole.message.tool_calls, [call for piece in pieces for call in piece.message.tool_calls or []]):
            asked.called([(call.function.name, dict(call.function.arguments)) for call in calls])
            results = [{"role": "tool", "tool_name": asked.TOOL, "content": asked.weather(town)} for town in asked.TOWNS]
            history = [*messages, ollama.Message(role="assistant", tool_calls=calls), *results]
            asked.same(self.text(self.ask(history, tools=asked.TOOLS)), asked.FORECAST)


class Generate(Client):
    """generate."""

    endpoint = "/api/generate"

    def ask(self, question: Any = asked.QUESTION, limit: int = asked.LONG, temperature: float = 0, **options: Any) -> Any:
        limits = {"temperature": temperature, "num_predict": limit}
        limits |= {key: options.pop(key) for key in ("seed", "top_k") if key in options}
        return self.client.generate(model=self.server.model, prompt=question, options=limits, **options)

    def text(self, answer: Any) -> str:
        return answer.response or ""

    def thought(self, answer: Any) -> str:
        return answer.thinking or ""


if __name__ == "__main__":
    main([Chat, Generate])
