"""LiteLLM on the three protocols that it translates: OpenAI's, Anthropic's and Ollama's."""

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the internet for prices when it is imported
import litellm

from tests.clients import asked
from tests.clients.rows import Row, main
from tests.clients.town import Town

litellm.suppress_debug_info = True
litellm.enable_json_schema_validation = True


class OpenAI(Row):
    """completion with provider hosted_vllm, which is OpenAI's protocol for any server."""

    package = "litellm"
    endpoint = "/v1/chat/completions"
    provider = "hosted_vllm/"
    path = "/v1"
    thinks: dict[str, Any] = {"reasoning_effort": "high"}  # noqa: RUF012 - never changed

    def ask(self, question: Any = asked.QUESTION, **options: Any) -> Any:
        """One completion at temperature 0."""
        messages = question if isinstance(question, list) else [{"role": "user", "content": question}]
        options = {"temperature": 0, "max_tokens": asked.LONG, **options}
        url = self.server.url + self.path
        return litellm.completion(
            model=self.provider + self.server.model, api_base=url, api_key="none", num_retries=0, messages=messages, **options
        )

    def joined(self, question: Any = asked.QUESTION, **options: Any) -> Any:
        """The answer that LiteLLM joins from a stream."""
        return litellm.stream_chunk_builder(list(self.ask(question, stream=True, **options)))

    def chat(self) -> None:
        choice = self.ask().choices[0]
        asked.same((choice.message.content, choice.finish_reason), (asked.ANSWER, "stop"))
        asked.same(self.ask(max_tokens=asked.SHORT).choices[0].finish_reason, "length")

    def streamed(self) -> None:
        asked.same("".join(chunk.choices[0].delta.content or "" for chunk in self.ask(stream=True)), asked.ANSWER)
        asked.same(self.joined().choices[0].finish_reason, "stop")

    def tools(self) -> None:
        for choice in (self.ask(asked.WEATHER, tools=asked.TOOLS).choices[0], self.joined(asked.WEATHER, tools=asked.TOOLS).choices[0]):
            calls = choice.message.tool_calls
            asked.called([(call.function.name, json.loads(call.function.arguments)) for call in calls])
            asked.same(choice.finish_reason, "tool_calls")
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": asked.weather(town)}
                for call, town in zip(calls, asked.TOWNS, strict=True)
            ]
            history = [{"role": "user", "content": asked.WEATHER}, choice.message, *results]
            asked.same(self.ask(history, tools=asked.TOOLS).choices[0].message.content, asked.FORECAST)

    def structured(self) -> None:
        whole = Town.model_validate_json(self.ask(response_format=Town).choices[0].message.content)
        asked.same(Town.model_validate_json(self.joined(response_format=Town).choices[0].message.content), whole)

    def thinking(self) -> None:
        for answer in (self.ask(**self.thinks), self.joined(**self.thinks)):
            message = answer.choices[0].message
            asked.same((message.content, message.reasoning_content), (asked.ANSWER, asked.THOUGHT))

    def errors(self) -> None:
        for ask in (self.ask, lambda **bad: list(self.ask(stream=True, **bad))):
            try:
                ask(temperature=asked.COLD)
            except litellm.BadRequestError as error:
                asked.holds(error.message, "temperature", str(asked.COLD))
            else:
                raise AssertionError("a temperature of -1 was served")

    def usage(self) -> None:
        wanted = self.server.counts(chat_template_kwargs={"enable_thinking": True})
        for answer in (self.ask(**self.thinks), self.joined(stream_options={"include_usage": True}, **self.thinks)):
            asked.same((answer.usage.prompt_tokens, answer.usage.completion_tokens), wanted)


class Anthropic(OpenAI):
    """completion with provider anthropic."""

    endpoint = "/v1/messages"
    provider = "anthropic/"
    path = ""
    thinks: dict[str, Any] = {  # noqa: RUF012 - never changed
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "allowed_openai_params": ["thinking"],  # LiteLLM knows Anthropic's models only by name
        "max_tokens": 2000,
    }


class Ollama(OpenAI):
    """completion with provider ollama_chat."""

    endpoint = "/api/chat"
    provider = "ollama_chat/"
    path = ""


if __name__ == "__main__":
    main([OpenAI, Anthropic, Ollama])
