"""What each client asks and what the answers must be, told by plain HTTP to /v1/chat/completions. Standard library only.

The scripts of this folder run in environments that hold one client each, so nothing here imports SGLang or this package.
"""

import json
import urllib.request
from typing import Any

QUESTION = "Who rules Belm?"
ANSWER = "Belm is ruled by Kaspar."
THOUGHT = "I am asked about the ruler of Belm. It is Kaspar."
TOWNS = ("Belm", "Corin")
WEATHER = "What is the weather in Belm and Corin?"
SKIES = {"Belm": "sunny", "Corin": "rainy"}
FORECAST = "It is sunny in Belm. It is rainy in Corin."
TOOL = "get_weather"
MEANING = "Gets the weather of a town."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "The name of the town."}},
    "required": ["city"],
}
TOOLS: list[Any] = [{"type": "function", "function": {"name": TOOL, "description": MEANING, "parameters": PARAMETERS}}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "enum": list(TOWNS)},
        "large": {"type": "boolean"},
        "gates": {"type": "integer", "enum": [1, 2, 3]},
    },
    "required": ["name", "large", "gates"],
    "additionalProperties": False,
}
LONG = 400  # tokens; a grammar lets blanks stand between the values of an answer
SHORT = 5  # tokens; the answer has more
COLD = -1  # a temperature that no server takes


class Endpoint:
    """The server under test.

    Attributes:
        url: the server's address without a path.
        model: the served model's name.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.model: str = self._get("/v1/models")["data"][0]["id"]

    def _get(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def whole(self, question: Any = QUESTION, **options: Any) -> Any:
        """The JSON of one whole chat completion at temperature 0; ``question`` is a text or a list of messages."""
        messages = question if isinstance(question, list) else [{"role": "user", "content": question}]
        body = {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": LONG, **options}
        return self._get("/v1/chat/completions", body)

    def counts(self, question: Any = QUESTION, **options: Any) -> tuple[int, int]:
        """Tokens of the prompt and of the answer, as /v1/chat/completions counts them."""
        usage = self.whole(question, **options)["usage"]
        return usage["prompt_tokens"], usage["completion_tokens"]


def same(seen: Any, wanted: Any) -> None:
    """Raise an AssertionError that shows both unless they are equal."""
    if seen != wanted:
        raise AssertionError(f"{seen!r} instead of {wanted!r}")


def holds(text: str, *words: str) -> None:
    """Raise an AssertionError unless ``text`` has each of ``words``."""
    missing = [word for word in words if word.lower() not in text.lower()]
    if missing:
        raise AssertionError(f"{missing} not named in {text!r}")


def weather(city: str) -> str:
    """What the tool says of a town."""
    return SKIES[city]


def called(calls: list[tuple[str, Any]]) -> None:
    """Raise an AssertionError unless ``calls``, pairs of a name and parsed arguments, are one for each town."""
    same(calls, [(TOOL, {"city": town}) for town in TOWNS])


def fits(value: Any) -> None:
    """Raise an AssertionError unless the parsed ``value`` fits SCHEMA."""
    good = isinstance(value, dict) and list(value) == list(SCHEMA["properties"]) and value["name"] in TOWNS
    if not good or type(value["large"]) is not bool or value["gates"] not in (1, 2, 3):
        raise AssertionError(f"{value!r} does not fit the schema")
