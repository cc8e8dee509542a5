"""Pydantic AI over chat completions and over responses."""

from typing import Any

from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ThinkingPart, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients import asked
from tests.clients.rows import Row, main
from tests.clients.town import Town


class Chat(Row):
    """OpenAIChatModel."""

    package = "pydantic-ai-slim"
    endpoint = "/v1/chat/completions"
    made: Any = OpenAIChatModel
    thinks: dict[str, Any] = {"openai_reasoning_effort": "high"}  # noqa: RUF012 - never changed

    def agent(self, output: Any = str, temperature: float = 0, **settings: Any) -> Any:
        """An agent at temperature 0."""
        model = self.made(self.server.model, provider=OpenAIProvider(base_url=f"{self.server.url}/v1", api_key="none"))
        return Agent(
            model, output_type=output, model_settings={"temperature": temperature, "max_tokens": asked.LONG, **settings}, retries=0
        )

    def thought(self, part: Any) -> str:
        """What the model thought."""
        return str(part.content)

    def chat(self) -> None:
        asked.same(self.agent().run_sync(asked.QUESTION).output, asked.ANSWER)

    async def streamed(self) -> None:
        async with self.agent().run_stream(asked.QUESTION) as stream:
            asked.same("".join([piece async for piece in stream.stream_text(delta=True)]), asked.ANSWER)

    async def tools(self) -> None:
        told: list[str] = []
        agent = self.agent()

        @agent.tool_plain
        def get_weather(city: str) -> str:
            """Gets the weather of a town.

            Args:
                city: The name of the town.
            """
            told.append(city)
            return asked.weather(city)

        asked.same((await agent.run(asked.WEATHER)).output, asked.FORECAST)
        async with agent.run_stream(asked.WEATHER) as stream:
            asked.same(await stream.get_output(), asked.FORECAST)
        asked.same(sorted(told), sorted(asked.TOWNS * 2))

    async def structured(self) -> None:
        for output in (NativeOutput(Town), ToolOutput(Town)):
            agent = self.agent(output)
            whole = (await agent.run("Tell me of Belm.")).output
            asked.same(type(whole), Town)
            async with agent.run_stream("Tell me of Belm.") as stream:
                asked.same(await stream.get_output(), whole)

    async def thinking(self) -> None:
        agent = self.agent(**self.thinks)
        whole = await agent.run(asked.QUESTION)
        async with agent.run_stream(asked.QUESTION) as stream:
            asked.same(await stream.get_output(), asked.ANSWER)
        for messages in (whole.all_messages(), stream.all_messages()):
            thoughts = [self.thought(part) for part in messages[-1].parts if isinstance(part, ThinkingPart)]
            asked.same(thoughts, [asked.THOUGHT])

    async def errors(self) -> None:
        async def stream() -> None:
            async with self.agent(temperature=asked.COLD).run_stream(asked.QUESTION) as pieces:
                await pieces.get_output()

        for bad in (self.agent(temperature=asked.COLD).run(asked.QUESTION), stream()):
            try:
                await bad
            except ModelHTTPError as error:
                asked.same(error.status_code, 400)
                asked.holds(str(error), "temperature", str(asked.COLD))
            else:
                raise AssertionError("a temperature of -1 was served")

    async def usage(self) -> None:
        whole = await self.agent().run(asked.QUESTION)
        async with self.agent().run_stream(asked.QUESTION) as stream:
            await stream.get_output()
        for run in (whole, stream):
            asked.same((run.usage.input_tokens, run.usage.output_tokens), self.server.counts())


class Responses(Chat):
    """OpenAIResponsesModel."""

    endpoint = "/v1/responses"
    made: Any = OpenAIResponsesModel

    def thought(self, part: Any) -> str:
        return "".join(part.provider_details["raw_content"])  # its content is a thought's summary, which OpenAI's models write


if __name__ == "__main__":
    main([Chat, Responses])
