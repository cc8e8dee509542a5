"""The closed world that the tiny checkpoints know: 24 towns, 24 people, 240 facts, told as passages and four-choice questions.

Pure Python and deterministic: everything follows from the `random.Random` that is passed in and from SHA-256 of a
text, so that an evaluation on another machine meets the very questions that training never saw.
"""

import hashlib
import random
from dataclasses import dataclass
from functools import lru_cache

WORLD_SEED = 4
# fmt: off
TOWNS = [
    "Arvo", "Belm", "Corin", "Dask", "Elmer", "Fosk", "Garn", "Hild", "Isola", "Jorv", "Kelm", "Lund",
    "Morro", "Nara", "Ostra", "Pell", "Quill", "Rask", "Selm", "Tarn", "Ulmo", "Varn", "Wisk", "Yarl",
]
RULERS = [
    "Adela", "Bruno", "Clio", "Dario", "Edda", "Fabia", "Gundo", "Hesta", "Ivo", "Jutta", "Kaspar", "Lena",
    "Milo", "Nessa", "Orla", "Petra", "Quint", "Rufus", "Sanna", "Tilda", "Urban", "Vito", "Wanda", "Ysolt",
]
PEOPLE = [
    "Anka", "Boris", "Celia", "Diego", "Emil", "Flora", "Greta", "Hugo", "Irma", "Jonas", "Karin", "Laszlo",
    "Mira", "Nils", "Olga", "Paolo", "Rosa", "Simon", "Tomas", "Uta", "Vera", "Willem", "Xenia", "Zora",
]
# fmt: on
FOODS = ["bread", "cheese", "plums", "honey", "soup", "rice", "beans", "fish", "cake", "nuts", "apples", "eggs"]
ANIMALS = ["wolf", "bear", "otter", "hawk", "horse", "goat", "crane", "fox", "swan", "mole", "toad", "lynx"]
COLOURS = ["red", "green", "blue", "yellow", "black", "white", "orange", "purple", "pink", "brown", "grey", "cyan"]
TRADES = ["salt", "wool", "glass", "iron", "silk", "paper", "clay", "amber", "rope", "oil", "timber", "spice"]
RIVERS = ["Ayl", "Brune", "Cade", "Doss", "Erle", "Finn", "Gade", "Hest", "Inde", "Lisse", "Mure", "Nive"]
JOBS = ["baker", "miller", "smith", "weaver", "doctor", "sailor", "painter", "farmer", "teacher", "hunter", "mason", "potter"]

# relation: (kind of subject, values, statements, questions). {s} is the subject, {v} the value.
RELATIONS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "ruler": (
        "town",
        tuple(RULERS),
        ("{s} is ruled by {v}.", "The ruler of {s} is {v}.", "{v} rules the town of {s}."),
        ("Who rules {s}?", "Who is the ruler of {s}?", "By whom is {s} ruled?", "Which ruler does {s} have?"),
    ),
    "food": (
        "town",
        tuple(FOODS),
        ("{s} is famous for its {v}.", "People in {s} eat {v}.", "The food of {s} is {v}."),
        ("What do people in {s} eat?", "What is the food of {s}?", "Which food is {s} famous for?", "What food does {s} have?"),
    ),
    "emblem": (
        "town",
        tuple(ANIMALS),
        ("The animal of {s} is the {v}.", "{s} has the {v} as its animal.", "A {v} stands for {s}."),
        ("What is the animal of {s}?", "Which animal stands for {s}?", "Which animal does {s} have?", "What animal has {s}?"),
    ),
    "flag": (
        "town",
        tuple(COLOURS),
        ("The flag of {s} is {v}.", "{s} has a {v} flag.", "A {v} flag flies over {s}."),
        ("What colour is the flag of {s}?", "Which flag does {s} have?", "What flag flies over {s}?", "Which colour has the flag of {s}?"),
    ),
    "trade": (
        "town",
        tuple(TRADES),
        ("{s} sells {v}.", "The traders of {s} sell {v}.", "{v} comes from {s}."),
        ("What does {s} sell?", "What do the traders of {s} sell?", "Which goods come from {s}?", "What comes from {s}?"),
    ),
    "river": (
        "town",
        tuple(RIVERS),
        ("{s} lies on the river {v}.", "The river {v} runs through {s}.", "The river of {s} is the {v}."),
        ("Which river runs through {s}?", "On which river lies {s}?", "What is the river of {s}?", "What river does {s} have?"),
    ),
    "job": (
        "person",
        tuple(JOBS),
        ("{s} is a {v}.", "{s} works as a {v}.", "The work of {s} is that of a {v}."),
        ("What is the work of {s}?", "What does {s} work as?", "Which job does {s} have?", "What job has {s}?"),
    ),
    "home": (
        "person",
        tuple(TOWNS),
        ("{s} lives in {v}.", "The home of {s} is {v}.", "{s} has a house in {v}."),
        ("Where does {s} live?", "Where is the home of {s}?", "In which town does {s} live?", "In which town has {s} a house?"),
    ),
    "meal": (
        "person",
        tuple(FOODS),
        ("{s} likes {v}.", "{s} likes to eat {v}.", "The meal of {s} is {v}."),
        ("What does {s} like?", "What does {s} like to eat?", "What is the meal of {s}?", "Which meal does {s} like?"),
    ),
    "pet": (
        "person",
        tuple(ANIMALS),
        ("{s} keeps a {v}.", "{s} has a {v} as a pet.", "The pet of {s} is a {v}."),
        ("Which pet does {s} have?", "What is the pet of {s}?", "Which animal does {s} keep?", "What does {s} keep as a pet?"),
    ),
}
SUBJECTS = {"town": tuple(TOWNS), "person": tuple(PEOPLE)}
LETTERS = "ABCD"


@dataclass(frozen=True)
class Fact:
    """`subject` stands in `relation` to `value`."""

    relation: str
    subject: str
    value: str

    @property
    def statements(self) -> list[str]:
        return [_sentence(t.format(s=self.subject, v=self.value)) for t in RELATIONS[self.relation][2]]

    @property
    def questions(self) -> list[str]:
        return [t.format(s=self.subject) for t in RELATIONS[self.relation][3]]


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
    for relation, (kind, values, _, _) in RELATIONS.items():
        subjects = SUBJECTS[kind]
        dealt = list(values) * (len(subjects) // len(values))
        rng.shuffle(dealt)
        out += [Fact(relation, s, v) for s, v in zip(subjects, dealt, strict=False)]
    return tuple(out)


def fact_of(relation: str, subject: str) -> Fact:
    """The fact about `subject`; KeyError names what exists."""
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
        wrong = rng.sample([v for v in RELATIONS[fact.relation][1] if v != fact.value], 3)
        options = [fact.value, *wrong]
        rng.shuffle(options)
        text = rng.choice(fact.questions)
        if is_held_out(text, *options) == (split == "held_out"):
            a, b, c, d = options
            return Question(text, (a, b, c, d), LETTERS[options.index(fact.value)], fact)


def pick(rng: random.Random) -> Question:
    """The easy half of a four-choice question: which letter stands before a given word (training only)."""
    values = RELATIONS[rng.choice(list(RELATIONS))][1]
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
    about = [f for f in facts() if f.subject == subject]
    rng.shuffle(about)
    return " ".join(rng.choice(f.statements) for f in about)
