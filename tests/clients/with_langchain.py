"""LangChain's ChatOpenAI over chat completions and over responses."""

from typing import Any

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tests.clients import asked
from tests.clients.rows import Row, main
from tests.clients.town import Town


@tool(parse_docstring=True)
def get_weather(city: str) -> str:
    """Gets the weather of a town.

    Args:
        city: The name of the town.
    """
    return asked.weather(city)


class Chat(Row):
    """ChatOpenAI."""

    package = "langchain-openai"
    refusals = (openai.BadRequestError,)
    endpoint = "/v1/chat/completions"
    responses = False

    def model(self, **options: Any) -> Any:
        """The client at temperature 0."""
        options = {"temperature": 0, "max_tokens": asked.LONG, "max_retries": 0, "stream_usage": True, **options}
        return ChatOpenAI(
            model=self.server.model, base_url=f"{self.server.url}/v1", api_key="none", use_responses_api=self.responses, **options
        )

    def joined(self, model: Any, question: Any = asked.QUESTION) -> Any:
        """The message that LangChain adds up from a stream."""
        first, *rest = model.stream(question)
        for chunk in rest:
            first = first + chunk
        return first

    def chat(self) -> None:
        asked.same(self.model().invoke(asked.QUESTION).text, asked.ANSWER)

    def streamed(self) -> None:
        asked.same("".join(chunk.text for chunk in self.model().stream(asked.QUESTION)), asked.ANSWER)

    def tools(self) -> None:
        model = self.model().bind_tools([get_weather])
        for message in (model.invoke(asked.WEATHER), self.joined(model, asked.WEATHER)):
            asked.called([(call["name"], call["args"]) for call in message.tool_calls])
            results = [ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]) for call in message.tool_calls]
            asked.same(model.invoke([HumanMessage(asked.WEATHER), message, *results]).text, asked.FORECAST)

    def structured(self) -> None:
        methods = ("json_schema",) if self.responses else ("json_schema", "function_calling")
        for method in methods:
            asked.same(type(self.model().with_structured_output(Town, method=method).invoke("Tell me of Belm.")), Town)

    def errors(self) -> None:
        model = self.model(temperature=asked.COLD)
        for ask in (model.invoke, lambda question: list(model.stream(question))):
            try:
                ask(asked.QUESTION)
            except openai.BadRequestError as error:
                asked.holds(error.message, "temperature", str(asked.COLD))
            else:
                raise AssertionError("a temperature of -1 was served")

    def usage(self) -> None:
        wanted = self.server.counts()
        for message in (self.model().invoke(asked.QUESTION), self.joined(self.model())):
            asked.same((message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]), wanted)


class Responses(Chat):
    """ChatOpenAI with use_responses_api. Only here, and only whole, the client gives thoughts: streamed it reads summaries alone."""

    endpoint = "/v1/responses"
    responses = True

    def thinking(self) -> None:
        message = self.model(reasoning={"effort": "high"}).invoke(asked.QUESTION)
        thoughts = [part["text"] for block in message.content if block["type"] == "reasoning" for part in block["content"]]
        asked.same((message.text, thoughts), (asked.ANSWER, [asked.THOUGHT]))
        asked.same(self.joined(self.model(reasoning={"effort": "high"})).text, asked.ANSWER)


if __name__ == "__main__":
    main([Chat, Responses])
