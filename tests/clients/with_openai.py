"""OpenAI's own client: chat completions, completions and responses, each answer validated against the types that the client declares."""

import json
from typing import Any

import openai

from tests.clients import asked
from tests.clients.rows import Row, main
from tests.clients.town import Town


class Client(Row):
    """What the three endpoints share."""

    package = "openai"
    refusals = (openai.BadRequestError,)
    strict = True  # the client validates answers and raises where a value is not of the declared type

    def __init__(self, server: asked.Endpoint) -> None:
        super().__init__(server)
        # Strict: the client validates answers and raises where a value is not of the declared type.
        self.client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=self.strict)

    def refused(self, ask: Any) -> None:
        """The bad temperature raises the client's error with the server's words."""
        try:
            ask(temperature=asked.COLD)
        except openai.BadRequestError as error:
            asked.same(error.status_code, 400)
            asked.holds(error.message, "temperature", str(asked.COLD))
            return
        raise AssertionError("a temperature of -1 was served")


class Chat(Client):
    """chat.completions."""

    endpoint = "/v1/chat/completions"

    def ask(self, question: Any = asked.QUESTION, **options: Any) -> Any:
        """One completion at temperature 0."""
        messages = question if isinstance(question, list) else [{"role": "user", "content": question}]
        options = {"temperature": 0, "max_completion_tokens": asked.LONG, **options}
        return self.client.chat.completions.create(model=self.server.model, messages=messages, **options)

    def chat(self) -> None:
        choice = self.ask().choices[0]
        asked.same((choice.message.content, choice.finish_reason), (asked.ANSWER, "stop"))
        cut = self.ask(max_completion_tokens=asked.SHORT).choices[0]
        asked.same((cut.finish_reason, asked.ANSWER.startswith(cut.message.content)), ("length", True))

    def streamed(self) -> None:
        pieces = [chunk.choices[0].delta.content or "" for chunk in self.ask(stream=True)]
        asked.same("".join(pieces), asked.ANSWER)
        with self.client.chat.completions.stream(
            model=self.server.model, messages=[{"role": "user", "content": asked.QUESTION}], temperature=0
        ) as events:
            last = events.get_final_completion().choices[0]
        asked.same((last.message.content, last.finish_reason), (asked.ANSWER, "stop"))

    def tools(self) -> None:
        messages: list[Any] = [{"role": "user", "content": asked.WEATHER}]
        with self.client.chat.completions.stream(model=self.server.model, messages=messages, tools=asked.TOOLS, temperature=0) as events:
            streamed = events.get_final_completion().choices[0].message
        whole = self.ask(messages, tools=asked.TOOLS).choices[0]
        asked.same(whole.finish_reason, "tool_calls")
        for message in (streamed, whole.message):
            asked.called([(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls])
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": asked.weather(town)}
                for call, town in zip(message.tool_calls, asked.TOWNS, strict=True)
            ]
            asked.same(self.ask([*messages, message, *results], tools=asked.TOOLS).choices[0].message.content, asked.FORECAST)
        forced = self.ask(messages, tools=asked.TOOLS, tool_choice={"type": "function", "function": {"name": asked.TOOL}}).choices[0]
        asked.same(forced.message.tool_calls[0].function.name, asked.TOOL)
        asked.same(list(json.loads(forced.message.tool_calls[0].function.arguments)), ["city"])

    def structured(self) -> None:
        options: dict[str, Any] = {"model": self.server.model, "messages": [{"role": "user", "content": asked.QUESTION}], "temperature": 0}
        town = self.client.chat.completions.parse(response_format=Town, **options).choices[0].message.parsed
        with self.client.chat.completions.stream(response_format=Town, **options) as events:
            asked.same(events.get_final_completion().choices[0].message.parsed, town)
        form = {"type": "json_schema", "json_schema": {"name": "town", "schema": asked.SCHEMA, "strict": True}}
        asked.fits(json.loads(self.ask(response_format=form).choices[0].message.content))

    def thinking(self) -> None:
        message = self.ask(reasoning_effort="high").choices[0].message
        asked.same((message.content, message.reasoning_content), (asked.ANSWER, asked.THOUGHT))
        pieces = [chunk.choices[0].delta for chunk in self.ask(reasoning_effort="high", stream=True)]
        asked.same("".join(piece.content or "" for piece in pieces), asked.ANSWER)
        asked.same("".join(getattr(piece, "reasoning_content", None) or "" for piece in pieces), asked.THOUGHT)

    def errors(self) -> None:
        self.refused(self.ask)
        self.refused(lambda **bad: list(self.ask(stream=True, **bad)))

    def usage(self) -> None:
        whole = self.ask(reasoning_effort="high").usage
        asked.same((whole.prompt_tokens, whole.completion_tokens), self.server.counts(reasoning_effort="high"))
        asked.same(whole.total_tokens, whole.prompt_tokens + whole.completion_tokens)
        if not 0 < whole.completion_tokens_details.reasoning_tokens < whole.completion_tokens:
            raise AssertionError(f"{whole.completion_tokens_details.reasoning_tokens} tokens of a thought")
        *_, last = self.ask(stream=True, reasoning_effort="high", stream_options={"include_usage": True})
        asked.same((last.choices, last.usage), ([], whole))


class Completions(Client):
    """completions: no tools, no thinking."""

    strict = False  # the client's type has no null for why a piece ended, which OpenAI's own server sends

    endpoint = "/v1/completions"
    prompt = "Belm is ruled by"

    def ask(self, **options: Any) -> Any:
        """One completion at temperature 0."""
        return self.client.completions.create(
            **{"model": self.server.model, "prompt": self.prompt, "temperature": 0, "max_tokens": 5, **options}
        )

    def chat(self) -> None:
        asked.holds(self.ask().choices[0].text, "Kaspar")

    def streamed(self) -> None:
        asked.same("".join(chunk.choices[0].text for chunk in self.ask(stream=True)), self.ask().choices[0].text)

    def errors(self) -> None:
        self.refused(self.ask)
        self.refused(lambda **bad: list(self.ask(stream=True, **bad)))

    def usage(self) -> None:
        whole = self.ask(max_tokens=7, extra_body={"ignore_eos": True}).usage
        asked.same((whole.completion_tokens, whole.total_tokens), (7, whole.prompt_tokens + 7))
        *_, last = self.ask(max_tokens=7, stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
        asked.same((last.choices, last.usage), ([], whole))


class Responses(Client):
    """responses."""

    endpoint = "/v1/responses"
    flat = ({"type": "function", "name": asked.TOOL, "description": asked.MEANING, "parameters": asked.PARAMETERS, "strict": False},)

    def ask(self, question: Any = asked.QUESTION, **options: Any) -> Any:
        """One response at temperature 0."""
        return self.client.responses.create(**{"model": self.server.model, "input": question, "temperature": 0, **options})

    def streamed_last(self, question: Any = asked.QUESTION, **options: Any) -> Any:
        """The response with which a stream ends."""
        with self.client.responses.stream(model=self.server.model, input=question, temperature=0, **options) as events:
            return events.get_final_response()

    def chat(self) -> None:
        answer = self.ask()
        asked.same((answer.output_text, answer.status), (asked.ANSWER, "completed"))
        cut = self.ask(max_output_tokens=asked.SHORT)
        asked.same((cut.status, cut.incomplete_details.reason, cut.usage.output_tokens), ("incomplete", "max_output_tokens", asked.SHORT))

    def streamed(self) -> None:
        pieces = [event.delta for event in self.ask(stream=True) if event.type == "response.output_text.delta"]
        asked.same("".join(pieces), asked.ANSWER)
        last = self.streamed_last()
        asked.same((last.output_text, last.status), (asked.ANSWER, "completed"))

    def tools(self) -> None:
        whole, streamed = self.ask(asked.WEATHER, tools=self.flat), self.streamed_last(asked.WEATHER, tools=self.flat)
        for answer in (whole, streamed):
            calls = [item for item in answer.output if item.type == "function_call"]
            asked.called([(call.name, json.loads(call.arguments)) for call in calls])
            history: list[Any] = [{"role": "user", "content": asked.WEATHER}, *answer.output]
            for call, town in zip(calls, asked.TOWNS, strict=True):
                history.append({"type": "function_call_output", "call_id": call.call_id, "output": asked.weather(town)})
            asked.same(self.ask(history, tools=self.flat).output_text, asked.FORECAST)

    def structured(self) -> None:
        town = self.client.responses.parse(model=self.server.model, input=asked.QUESTION, text_format=Town, temperature=0).output_parsed
        asked.same(type(town), Town)
        asked.same(self.streamed_last(text_format=Town).output_parsed, town)
        form = {"format": {"type": "json_schema", "name": "town", "schema": asked.SCHEMA, "strict": True}}
        asked.fits(json.loads(self.ask(text=form).output_text))

    def thinking(self) -> None:
        for answer in (self.ask(reasoning={"effort": "high"}), self.streamed_last(reasoning={"effort": "high"})):
            thoughts = [part.text for item in answer.output if item.type == "reasoning" for part in item.content]
            asked.same((answer.output_text, thoughts), (asked.ANSWER, [asked.THOUGHT]))

    def errors(self) -> None:
        self.refused(self.ask)
        self.refused(lambda **bad: list(self.ask(stream=True, **bad)))

    def usage(self) -> None:
        whole = self.ask(reasoning={"effort": "high"}).usage
        asked.same((whole.input_tokens, whole.output_tokens), self.server.counts(reasoning_effort="high"))
        asked.same(whole.total_tokens, whole.input_tokens + whole.output_tokens)
        asked.same(self.streamed_last(reasoning={"effort": "high"}).usage, whole)


if __name__ == "__main__":
    main([Chat, Completions, Responses])
