"""Anthropic's own client on /v1/messages, each answer validated against the types that the client declares."""

import json
from typing import Any

import anthropic
from anthropic import beta_tool

from tests.clients import asked
from tests.clients.rows import Row, main
from tests.clients.town import Town

TOOLS: list[Any] = [{"name": asked.TOOL, "description": asked.MEANING, "input_schema": asked.PARAMETERS}]
THINK: Any = {"type": "enabled", "budget_tokens": 1024}


class Messages(Row):
    """messages."""

    package = "anthropic"
    refusals = (anthropic.BadRequestError,)
    endpoint = "/v1/messages"

    def __init__(self, server: asked.Endpoint) -> None:
        super().__init__(server)
        self.client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, _strict_response_validation=True)

    def options(self, question: Any, temperature: float = 0, **options: Any) -> Any:
        """The keywords of one message at temperature 0; this client has no keyword for a temperature."""
        messages = question if isinstance(question, list) else [{"role": "user", "content": question}]
        body = {"temperature": temperature}
        return {"model": self.server.model, "max_tokens": asked.LONG, "messages": messages, "extra_body": body, **options}

    def ask(self, question: Any = asked.QUESTION, **options: Any) -> Any:
        """One whole message, or the events of one with ``stream=True``."""
        return self.client.messages.create(**self.options(question, **options))

    def streamed_last(self, question: Any = asked.QUESTION, **options: Any) -> Any:
        """The message that the client joins from a stream."""
        with self.client.messages.stream(**self.options(question, **options)) as stream:
            return stream.get_final_message()

    def chat(self) -> None:
        answer = self.ask()
        asked.same([(part.type, part.text) for part in answer.content], [("text", asked.ANSWER)])
        asked.same(answer.stop_reason, "end_turn")
        asked.same(self.ask(max_tokens=asked.SHORT).stop_reason, "max_tokens")
        stopped = self.ask(stop_sequences=[" is"])
        asked.same((stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text), ("stop_sequence", " is", "Belm"))

    def streamed(self) -> None:
        with self.client.messages.stream(**self.options(asked.QUESTION)) as stream:
            asked.same("".join(stream.text_stream), asked.ANSWER)
        asked.same(self.streamed_last().content[0].text, asked.ANSWER)
        stopped = self.streamed_last(stop_sequences=[" is"])
        asked.same((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", " is"))

    def tools(self) -> None:
        for answer in (self.ask(asked.WEATHER, tools=TOOLS), self.streamed_last(asked.WEATHER, tools=TOOLS)):
            calls = [part for part in answer.content if part.type == "tool_use"]
            asked.called([(call.name, call.input) for call in calls])
            asked.same(answer.stop_reason, "tool_use")
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": asked.weather(town)}
                for call, town in zip(calls, asked.TOWNS, strict=True)
            ]
            history = [{"role": "user", "content": asked.WEATHER}, {"role": "assistant", "content": answer.content}]
            asked.same(self.ask([*history, {"role": "user", "content": results}], tools=TOOLS).content[0].text, asked.FORECAST)

    def structured(self) -> None:
        form = {"format": {"type": "json_schema", "schema": asked.SCHEMA}}
        asked.fits(json.loads(self.ask(output_config=form).content[0].text))
        parsed = self.client.messages.parse(**self.options(asked.QUESTION), output_format=Town)
        asked.same(type(parsed.parsed_output), Town)

    def thinking(self) -> None:
        for answer in (self.ask(thinking=THINK, max_tokens=2000), self.streamed_last(thinking=THINK, max_tokens=2000)):
            thought, text = answer.content
            asked.same((thought.thinking, text.text), (asked.THOUGHT, asked.ANSWER))
            asked.same(type(thought.signature), str)
            history = [{"role": "user", "content": asked.QUESTION}, {"role": "assistant", "content": answer.content}]
            asked.same(self.ask([*history, {"role": "user", "content": asked.QUESTION}]).content[0].text, asked.ANSWER)

    def errors(self) -> None:
        for ask in (self.ask, lambda **bad: list(self.ask(stream=True, **bad)), self.streamed_last):
            try:
                ask(temperature=asked.COLD)
            except anthropic.BadRequestError as error:
                asked.same((error.body["type"], error.body["error"]["type"]), ("error", "invalid_request_error"))  # type: ignore[index]
                asked.holds(error.message, "temperature", str(asked.COLD))
            else:
                raise AssertionError("a temperature of -1 was served")

    def usage(self) -> None:
        wanted = self.server.counts(chat_template_kwargs={"enable_thinking": True})
        for answer in (self.ask(thinking=THINK, max_tokens=2000), self.streamed_last(thinking=THINK, max_tokens=2000)):
            asked.same((answer.usage.input_tokens, answer.usage.output_tokens), wanted)
        counted = self.client.messages.count_tokens(model=self.server.model, messages=[{"role": "user", "content": asked.QUESTION}])
        asked.same(counted.input_tokens, self.server.counts()[0])


class ToolRunner(Messages):
    """beta.messages.tool_runner: the client calls the tools and asks on by itself."""

    endpoint = "/v1/messages, tool runner"

    def tools(self) -> None:
        @beta_tool(description=asked.MEANING, input_schema=asked.PARAMETERS)
        def get_weather(city: str) -> str:
            return asked.weather(city)

        runner = self.client.beta.messages.tool_runner(**self.options(asked.WEATHER), tools=[get_weather])
        asked.same(runner.until_done().content[0].text, asked.FORECAST)  # type: ignore[union-attr]

    chat = streamed = structured = thinking = errors = usage = None  # type: ignore[assignment]


if __name__ == "__main__":
    main([Messages, ToolRunner])
