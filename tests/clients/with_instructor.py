"""Instructor: a pydantic object for every answer, by tools, by a JSON schema and by /v1/responses."""

from typing import Any

import instructor
import openai
from instructor.core.exceptions import InstructorRetryException

from tests.clients import asked
from tests.clients.rows import Row, main
from tests.clients.town import Town


class ToolMode(Row):
    """Mode.TOOLS: the answer is a forced call."""

    package = "instructor"
    endpoint = "/v1/chat/completions, TOOLS"
    mode = instructor.Mode.TOOLS

    def __init__(self, server: asked.Endpoint) -> None:
        super().__init__(server)
        plain = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True)
        self.client: Any = instructor.from_openai(plain, mode=self.mode)

    def options(self, **options: Any) -> Any:
        """The keywords of one answer at temperature 0, validated once."""
        messages = [{"role": "user", "content": "Tell me of Belm."}]
        return {"model": self.server.model, "messages": messages, "temperature": 0, "max_retries": 0, "max_tokens": asked.LONG, **options}

    def structured(self) -> None:
        town = self.client.create(response_model=Town, **self.options())
        asked.same(isinstance(town, Town), True)  # a class of Instructor's that is derived from ours
        asked.fits(town.model_dump())

    def streamed(self) -> None:
        """The same as whole, with the schema that Instructor sends for a partial object: there every field may be null."""
        *_, last = self.client.create_partial(response_model=Town, **self.options())
        whole = self.client.create(response_model=instructor.Partial[Town], **self.options())
        asked.same(last.model_dump(), whole.model_dump())

    def errors(self) -> None:
        try:
            self.client.create(response_model=Town, **self.options(temperature=asked.COLD))
        except InstructorRetryException as error:
            asked.holds(str(error), "temperature", str(asked.COLD), "400")
            return
        raise AssertionError("a temperature of -1 was served")

    def usage(self) -> None:
        town, raw = self.client.create_with_completion(response_model=Town, **self.options())
        asked.same(isinstance(town, Town), True)
        asked.same(raw.usage.total_tokens, raw.usage.prompt_tokens + raw.usage.completion_tokens)


class SchemaMode(ToolMode):
    """Mode.JSON_SCHEMA: response_format."""

    endpoint = "/v1/chat/completions, JSON_SCHEMA"
    mode = instructor.Mode.JSON_SCHEMA


class ResponsesMode(ToolMode):
    """Mode.RESPONSES_TOOLS."""

    endpoint = "/v1/responses, RESPONSES_TOOLS"
    mode = instructor.Mode.RESPONSES_TOOLS

    def usage(self) -> None:
        town, raw = self.client.create_with_completion(response_model=Town, **self.options())
        asked.same(isinstance(town, Town), True)
        asked.same(raw.usage.total_tokens, raw.usage.input_tokens + raw.usage.output_tokens)


if __name__ == "__main__":
    main([ToolMode, SchemaMode, ResponsesMode])
