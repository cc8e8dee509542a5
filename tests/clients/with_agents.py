"""OpenAI's Agents SDK over chat completions and over responses."""

import json
from typing import Any

import agents
import openai
from openai.types.shared import Reasoning

from tests.clients import asked
from tests.clients.rows import Row, main
from tests.clients.town import Town

agents.set_tracing_disabled(True)


class Chat(Row):
    """OpenAIChatCompletionsModel."""

    package = "openai-agents"
    refusals = (openai.BadRequestError,)
    endpoint = "/v1/chat/completions"
    made: Any = agents.OpenAIChatCompletionsModel

    def agent(self, temperature: float = 0, effort: Any = None, **options: Any) -> Any:
        """An agent at temperature 0."""
        client = openai.AsyncOpenAI(base_url=f"{self.server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True)
        settings = agents.ModelSettings(
            temperature=temperature, max_tokens=asked.LONG, include_usage=True, reasoning=Reasoning(effort=effort) if effort else None
        )
        model = self.made(model=self.server.model, openai_client=client)
        return agents.Agent(name="guide", model=model, model_settings=settings, **options)

    async def whole(self, agent: Any, question: str) -> Any:
        """The result of a run that is not streamed."""
        return await agents.Runner.run(agent, question)

    async def stream(self, agent: Any, question: str) -> Any:
        """The result of a streamed run."""
        result = agents.Runner.run_streamed(agent, question)
        self.pieces = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        return result

    async def chat(self) -> None:
        asked.same((await self.whole(self.agent(), asked.QUESTION)).final_output, asked.ANSWER)

    async def streamed(self) -> None:
        asked.same((await self.stream(self.agent(), asked.QUESTION)).final_output, asked.ANSWER)
        asked.same("".join(self.pieces), asked.ANSWER)

    async def tools(self) -> None:
        told: list[str] = []

        async def get_weather(_: Any, arguments: str) -> str:
            told.append(json.loads(arguments)["city"])
            return asked.weather(told[-1])

        # The schema that the client makes of a function names titles, with which the tiny model calls one town alone.
        tool = agents.FunctionTool(asked.TOOL, asked.MEANING, asked.PARAMETERS, get_weather, strict_json_schema=False)
        for run in (self.whole, self.stream):
            asked.same((await run(self.agent(tools=[tool]), asked.WEATHER)).final_output, asked.FORECAST)
        asked.same(sorted(told), sorted(asked.TOWNS * 2))

    async def structured(self) -> None:
        agent = self.agent(output_type=Town)
        whole = (await self.whole(agent, "Tell me of Belm.")).final_output
        asked.same(type(whole), Town)
        asked.same((await self.stream(agent, "Tell me of Belm.")).final_output, whole)

    async def thinking(self) -> None:
        for run in (self.whole, self.stream):
            result = await run(self.agent(effort="high"), asked.QUESTION)
            items = [item.raw_item for item in result.new_items if item.type == "reasoning_item"]
            thoughts = [part.text for item in items for part in (item.content or item.summary)]
            asked.same((result.final_output, thoughts), (asked.ANSWER, [asked.THOUGHT]))

    async def errors(self) -> None:
        for run in (self.whole, self.stream):
            try:
                await run(self.agent(temperature=asked.COLD), asked.QUESTION)
            except openai.BadRequestError as error:
                asked.holds(error.message, "temperature", str(asked.COLD))
            else:
                raise AssertionError("a temperature of -1 was served")

    async def usage(self) -> None:
        for run in (self.whole, self.stream):
            used = (await run(self.agent(), asked.QUESTION)).context_wrapper.usage
            asked.same((used.input_tokens, used.output_tokens), self.server.counts())


class Responses(Chat):
    """OpenAIResponsesModel."""

    endpoint = "/v1/responses"
    made: Any = agents.OpenAIResponsesModel


if __name__ == "__main__":
    main([Chat, Responses])
