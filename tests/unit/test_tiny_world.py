"""The world is the same everywhere, and what evaluation asks was never in training."""

import random

import pytest

from sglang_gemma4.tiny import dialogues, images, world


def test_facts_are_fixed_and_consistent() -> None:
    facts = world.facts()
    assert len(facts) == 240
    assert len({(f.relation, f.subject) for f in facts}) == 240
    assert world.fact_of("ruler", "Arvo").value in world.RULERS
    assert sorted(f.value for f in facts if f.relation == "ruler") == sorted(world.RULERS)
    with pytest.raises(KeyError, match="relations"):
        world.fact_of("height", "Arvo")


def test_same_seed_same_text() -> None:
    def make() -> list[object]:
        return [
            world.question(random.Random(3)).prompt,
            world.passage(random.Random(3)),
            dialogues.story_chat(random.Random(3)).messages,
            dialogues.tool_chat(random.Random(3)).messages,
        ]

    assert make() == make()
    assert world.question(random.Random(11), "held_out").prompt == world.question(random.Random(11), "held_out").prompt


def test_question_layout_and_answer() -> None:
    q = world.question(random.Random(5))
    lines = q.prompt.split("\n")
    assert [line[:3] for line in lines[1:5]] == ["A. ", "B. ", "C. ", "D. "]
    assert lines[5] == "Answer:"
    assert lines[1 + world.LETTERS.index(q.answer)] == f"{q.answer}. {q.fact.value}"
    assert len(set(q.options)) == 4
    shots = world.mmlu_prompt(q, [q])
    assert shots.startswith("The following are multiple choice questions (with answers) about the world.\n\n")
    assert f"Answer: {q.answer}\n\n" in shots
    assert shots.endswith("Answer:")


def test_splits_are_disjoint() -> None:
    rng = random.Random(0)
    train = {world.question(rng).prompt for _ in range(3000)}
    held = {world.question(rng, "held_out").prompt for _ in range(600)}
    assert not train & held
    chats = {str(dialogues.chat(rng, turns=1).messages[-2:]) for _ in range(2000)}
    assert not chats & {str(dialogues.chat(rng, "held_out", turns=1).messages[-2:]) for _ in range(300)}
    tools = {str(dialogues.tool_chat(rng).messages[0]) for _ in range(1000)}
    assert not tools & {str(dialogues.tool_chat(rng, "held_out").messages[0]) for _ in range(200)}
    with pytest.raises(ValueError, match="held_out"):
        world.question(rng, "test")


def test_two_calls_of_one_tool() -> None:
    messages = dialogues.tool_chat(random.Random(1), calls=2).messages
    calls = messages[1]["tool_calls"]
    assert len(calls) == 2
    assert calls[0]["function"]["name"] == calls[1]["function"]["name"]
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool", "assistant"]


def test_images_follow_their_seed() -> None:
    pytest.importorskip("PIL")
    a, b, c = images.draw(1, "red"), images.draw(1, "red"), images.draw(2, "red")
    assert a.tobytes() == b.tobytes()
    assert a.tobytes() != c.tobytes()
    assert len(images.RGB) >= 10
    assert set(images.RGB) == set(world.COLOURS)
    sizes = {images.draw(i, "blue").size for i in range(20)}
    assert len(sizes) > 15
    assert all(40 <= side <= 300 for size in sizes for side in size)
    dialogue, colours = images.colour_chat(random.Random(0), 2)
    assert dialogue.messages[-1]["content"] == " and ".join(colours)
