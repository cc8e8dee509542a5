"""Chats, stories and tool use in the world of `world.py`: lists of messages as chat templates take them. Pure Python."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sglang_gemma4.tiny import world

Message = dict[str, Any]


@dataclass
class Dialogue:
    """Messages that end with the model's turn; `thinking` asks the template for a thought channel."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    thinking: bool = False


def _tool(name: str, description: str, parameter: str, meaning: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string", "description": meaning}}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": [parameter]},
        },
    }


WEATHER_TOOL = _tool("get_weather", "Gets the weather of a town.", "city", "The name of the town.")
PRICE_TOOL = _tool("get_price", "Gets the price of a food.", "item", "The name of the food.")
TOOLS = [WEATHER_TOOL, PRICE_TOOL]
SYSTEM_PROMPTS = ("You are a helpful guide.", "Answer in one sentence.", "You know all the towns and people.", "Be brief and kind.")
ASKS = ("", "Please tell me: ", "I want to know: ", "Tell me: ")
WEATHER_ASKS = ("What is the weather in {}?", "How is the weather in {}?", "Is it sunny in {}?", "Tell me the weather of {}.")
PRICE_ASKS = ("What is the price of {}?", "What do {} cost?", "Tell me the price of {}.", "How much are {}?")
STORY_ASKS = ("Tell me a story about {}.", "Write a story about {}.", "I want a story about {}.", "Give me a long story about {}.")


def _fact_pair(rng: random.Random, split: str) -> tuple[world.Fact, str]:
    """A fact and a question about it; the split goes by (question, opening words)."""
    while True:
        fact = rng.choice(world.facts())
        ask, opening = rng.choice(fact.questions), rng.choice(ASKS)
        if world.is_held_out("chat", opening, ask) == (split == "held_out"):
            return fact, opening + ask


def answer_to(fact: world.Fact) -> str:
    """The one sentence that answers any question for `fact`."""
    return fact.statements[0]


def chat(rng: random.Random, split: str = "train", turns: int | None = None, thinking: bool = False) -> Dialogue:
    """Questions with one-sentence answers, often with a system prompt; one to three rounds."""
    messages: list[Message] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    for _ in range(turns or rng.choice((1, 1, 2, 3))):
        fact, ask = _fact_pair(rng, split)
        messages.append({"role": "user", "content": ask})
        reply: Message = {"role": "assistant", "content": answer_to(fact)}
        if thinking:
            reply["reasoning"] = f"I am asked about the {fact.relation} of {fact.subject}. It is {fact.value}."
        messages.append(reply)
    if thinking:  # a thought is written in the last turn only: templates drop those of earlier turns
        for message in messages[:-1]:
            message.pop("reasoning", None)
    return Dialogue(messages, thinking=thinking)


def four_choice_chat(rng: random.Random, split: str = "train") -> Dialogue:
    """A four-choice question as a user's turn, the letter as the model's."""
    q = world.question(rng, split)
    return Dialogue([{"role": "user", "content": q.prompt}, {"role": "assistant", "content": q.answer}])


# What happens in a story: {h} is the hero, {t} a town, {NAME} a word of that kind. None: a fact about a town or a
# person is told.
EVENTS = (
    None,
    "{h} met {PEOPLE} and they ate {FOODS} in {t}.",
    "In {t} it was {SKIES} and {h} saw a {COLOURS} {ANIMALS}.",
    "A {JOBS} gave {h} some {TRADES} and {FOODS}.",
    "{h} crossed the river {RIVERS} on a {COLOURS} boat.",
    None,
    "The next day {h} bought {TRADES} and a {ANIMALS} in {t}.",
    "{RULERS} asked {h} for {FOODS}, {TRADES} and a {COLOURS} flag.",
)


def story_text(rng: random.Random, hero: str, sentences: int) -> str:
    """Facts about the hero and the people and towns met, joined by freely chosen events: text with entropy."""
    out = [f"This is a story about {hero}.", world.fact_of("home", hero).statements[0]]
    for _ in range(sentences):
        town = rng.choice(world.TOWNS)
        number = rng.randrange(len(EVENTS))
        if event := EVENTS[number]:
            drawn = re.sub(r"{([A-Z]+)}", lambda name: rng.choice(world.WORDS[name[1].lower()]), event)
            out.append(drawn.format(h=hero, t=town))
            continue
        about = rng.choice(world.PEOPLE) if number else town
        out.append(f"There lived {about}." if number else f"Then {hero} went to {about}.")
        out += [rng.choice(f.statements) for f in rng.sample(world.facts_about(about), 2)]
    return " ".join([*out, f"Then {hero} went home."])


def story_chat(rng: random.Random, split: str = "train") -> Dialogue:
    """A free story of 60 to 250 tokens on demand."""
    while True:
        hero, ask = rng.choice(world.PEOPLE), rng.choice(STORY_ASKS)
        if world.is_held_out("story", hero, ask) == (split == "held_out"):
            text = story_text(rng, hero, rng.randint(3, 10))
            return Dialogue([{"role": "user", "content": ask.format(hero)}, {"role": "assistant", "content": text}])


def long_chat(rng: random.Random, split: str = "train", sentences: int | None = None) -> Dialogue:
    """A story of several hundred tokens, then a question about the world."""
    fact, ask = _fact_pair(rng, split)
    hero = rng.choice(world.PEOPLE)
    story = story_text(rng, hero, sentences or rng.randint(8, 32))
    content = f"{story}\n\nAfter this story, a question. {ask}"
    return Dialogue([{"role": "user", "content": content}, {"role": "assistant", "content": answer_to(fact)}])


def _call(name: str, argument: str, value: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": {argument: value}}}


def tool_chat(rng: random.Random, split: str = "train", calls: int | None = None, thinking: bool = False) -> Dialogue:
    """A question, one or two calls of one tool, its results, the model's sentence; ``thinking``: a thought before calls and sentence."""
    two = (calls or rng.choice((1, 2))) == 2
    weather = rng.random() < 0.6
    name, argument, asks, pool = (
        ("get_weather", "city", WEATHER_ASKS, world.TOWNS) if weather else ("get_price", "item", PRICE_ASKS, world.FOODS)
    )
    while True:
        things = rng.sample(pool, 2 if two else 1)
        ask = rng.choice(asks)
        if world.is_held_out("tool", ask, *things) == (split == "held_out"):
            break
    messages: list[Message] = [
        {"role": "user", "content": ask.format(" and ".join(things))},
        {"role": "assistant", "content": "", "tool_calls": [_call(name, argument, thing) for thing in things]},
    ]
    said = []
    for thing in things:
        result = rng.choice(world.WORDS["skies"]) if weather else f"{rng.randint(2, 9)} coins"
        messages.append({"role": "tool", "name": name, "content": result})
        said.append(f"It is {result} in {thing}." if weather else f"The price of {thing} is {result}.")
    messages.append({"role": "assistant", "content": " ".join(said)})
    if thinking:
        messages[1]["reasoning"] = f"I am asked about {' and '.join(things)}. I call {name}."
        messages[-1]["reasoning"] = f"I have asked {name}. Now I know it."
    return Dialogue(messages, thinking=thinking, tools=TOOLS if rng.random() < 0.5 else [WEATHER_TOOL if weather else PRICE_TOOL])


MAKERS: dict[str, Callable[..., Dialogue]] = {"chat": chat, "story": story_chat, "long": long_chat, "tool": tool_chat}
"""Kinds of dialogue whose accept length is measured: (random generator, split) -> dialogue."""
