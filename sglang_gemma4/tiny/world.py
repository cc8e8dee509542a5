"""The closed world that the tiny checkpoints know: 24 towns, 24 people, 240 facts, told as passages and four-choice questions.

Pure Python and deterministic: everything follows from the ``random.Random`` that is passed in and from SHA-256 of a
text. An evaluation on another machine therefore asks the same questions, which training never saw. Words and
sentences are in world.toml.
"""

import hashlib
import random
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

WORLD_SEED = 4
_DATA = tomllib.loads(Path(__file__).with_name("world.toml").read_text())
WORDS: dict[str, list[str]] = {name: words.split() for name, words in _DATA["words"].items()}
TOWNS, RULERS, PEOPLE, FOODS, COLOURS = (WORDS[name] for name in ("towns", "rulers", "people", "foods", "colours"))
SUBJECTS = {"town": TOWNS, "person": PEOPLE}
RELATIONS: dict[str, dict[str, Any]] = _DATA["relations"]
"""By name: the type of ``subject``, the name of its ``values`` in :data:`WORDS`, ``statements`` and ``questions`` with {s} and {v}."""
LETTERS = "ABCD"


@dataclass(frozen=True)
class Fact:
    """`subject` stands in `relation` to `value`."""

    relation: str
    subject: str
    value: str

    @property
    def statements(self) -> list[str]:
        return [_sentence(t.format(s=self.subject, v=self.value)) for t in RELATIONS[self.relation]["statements"]]

    @property
    def questions(self) -> list[str]:
        return [t.format(s=self.subject) for t in RELATIONS[self.relation]["questions"]]


@dataclass(frozen=True)
class Question:
    """A four-choice question in MMLU's layout; `answer` is the letter."""

    text: str
    options: tuple[str, str, str, str]
    answer: str
    fact: Fact

    @property
    def prompt(self) -> str:
        lines = [f"{letter}. {option}" for letter, option in zip(LETTERS, self.options, strict=False)]
        return "\n".join([self.text, *lines, "Answer:"])


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


@lru_cache(maxsize=1)
def facts() -> tuple[Fact, ...]:
    """All 240 facts, in a fixed order."""
    rng = random.Random(WORLD_SEED)
    out = []
    for name, relation in RELATIONS.items():
        subjects, values = SUBJECTS[relation["subject"]], values_of(name)
        dealt = values * (len(subjects) // len(values))
        rng.shuffle(dealt)
        out += [Fact(name, s, v) for s, v in zip(subjects, dealt, strict=False)]
    return tuple(out)


def values_of(relation: str) -> list[str]:
    """Every value that a subject may have."""
    return WORDS[RELATIONS[relation]["values"]]


def facts_about(subject: str) -> list[Fact]:
    """The facts of one town or person, in a fixed order."""
    return [fact for fact in facts() if fact.subject == subject]


def fact_of(relation: str, subject: str) -> Fact:
    """The fact about `subject`; the KeyError for an unknown one names what exists."""
    for fact in facts():
        if fact.relation == relation and fact.subject == subject:
            return fact
    raise KeyError(f"no fact {relation!r} of {subject!r}; relations: {sorted(RELATIONS)}")


def is_held_out(*key: str) -> bool:
    """True for one key in eight; such keys never enter training."""
    return hashlib.sha256("\x00".join(key).encode()).digest()[0] % 8 == 0


def question(rng: random.Random, split: str = "train") -> Question:
    """One four-choice question; the split goes by (phrasing, option set and order), the fact itself is always known."""
    if split not in ("train", "held_out"):
        raise ValueError(f"split is {split!r}; expected 'train' or 'held_out'")
    while True:
        fact = rng.choice(facts())
        wrong = rng.sample([v for v in values_of(fact.relation) if v != fact.value], 3)
        options = [fact.value, *wrong]
        rng.shuffle(options)
        text = rng.choice(fact.questions)
        if is_held_out(text, *options) == (split == "held_out"):
            a, b, c, d = options
            return Question(text, (a, b, c, d), LETTERS[options.index(fact.value)], fact)


def pick(rng: random.Random) -> Question:
    """The easy half of a four-choice question: which letter stands before a given word (training only)."""
    values = values_of(rng.choice(list(RELATIONS)))
    a, b, c, d = rng.sample(values, 4)
    value = rng.choice((a, b, c, d))
    return Question(f"Which of these is {value}?", (a, b, c, d), LETTERS[(a, b, c, d).index(value)], Fact("pick", value, value))


def mmlu_prompt(question: Question, shots: list[Question]) -> str:
    """The few-shot prompt of MMLU: a header, solved examples, the question, ending in `Answer:`."""
    head = "The following are multiple choice questions (with answers) about the world.\n\n"
    return head + "".join(f"{s.prompt} {s.answer}\n\n" for s in shots) + question.prompt


def passage(rng: random.Random) -> str:
    """Everything about one subject in random order and wording."""
    kind = rng.choice(("town", "person"))
    subject = rng.choice(SUBJECTS[kind])
    about = facts_about(subject)
    rng.shuffle(about)
    return " ".join(rng.choice(f.statements) for f in about)
