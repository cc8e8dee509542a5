"""What eval asks and keeps, without a server: questions, colour words, windows, resuming, bad input."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.quality import perplexity, questions, results
from sglang_gemma4.quality.command import add_commands
from sglang_gemma4.quality.endpoint import Endpoint, short
from sglang_gemma4.tiny import checkpoints, tokenizer, world


def test_world_questions_are_held_out_rows_in_the_form_of_mmlu() -> None:
    made = questions.four_choice("world", 40, 0)
    assert [e.id for e in made.examples] == [f"world-{i}" for i in range(40)]
    for example in made.examples:
        lines = example.inputs["problem"].splitlines()
        options = [line[3:] for line in lines[1:5]]
        assert lines[5] == "Answer:"
        assert world.is_held_out(lines[0], *options)
        assert options == [example.meta[letter] for letter in "ABCD"]
        assert example.target in "ABCD"
    assert made.dataset["why"] == "asked for with --dataset world"
    problems = [e.inputs["problem"] for e in made.examples]
    assert [e.inputs["problem"] for e in questions.four_choice("world", 20, 0).examples] == problems[:20]
    assert [e.inputs["problem"] for e in questions.four_choice("world", 40, 1).examples] != problems


@pytest.mark.parametrize(("said", "graded"), [("B", "B"), ("C.", "C"), ("Bruno", None), ("", None)])
def test_the_evaluator_reads_the_letter_behind_the_answer_line(said: str, graded: str | None) -> None:
    made = questions.four_choice("world", 1, 0)
    score = questions.evaluator("evals._multichoice").make_score_one_fn()
    sample = questions.evaluator("types").Sample(text=made.opening + said)
    assert score(made.examples[0], sample) == (float(graded == made.examples[0].target), graded)


def test_mmlu_that_cannot_be_fetched_is_named_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loader = questions.evaluator("evals._loader")
    registry = questions.evaluator("evals._registry")
    monkeypatch.setattr(loader, "_CACHE_ROOT", tmp_path)
    entry = next(row for row in registry._TABLE if row["name"] == "mmlu")
    monkeypatch.setitem(entry, "archive_url", "http://127.0.0.1:1/data.tar")
    made = questions.four_choice("auto", 3, 0)
    assert made.dataset["name"] == "world"
    assert "MMLU cannot be fetched (ConnectError" in made.dataset["why"]
    with pytest.raises(ValueError, match=r"MMLU cannot be fetched .* --dataset world"):
        questions.four_choice("mmlu", 3, 0)


def test_mmlu_rows_are_drawn_from_the_whole_split_by_the_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loader = questions.evaluator("evals._loader")
    monkeypatch.setattr(loader, "_CACHE_ROOT", tmp_path)
    (tmp_path / "mmlu").mkdir()
    rows = tmp_path / "mmlu" / "test.jsonl"
    rows.write_text("".join(json.dumps({"problem": f"q{i}", "expected_answer": "A"}) + "\n" for i in range(100)))
    loader._cache_marker(rows).write_text(loader._file_sha256(rows))
    made = {seed: [e.id for e in questions.four_choice("mmlu", 10, seed).examples] for seed in (0, 1)}
    assert made[0] == [e.id for e in questions.four_choice("auto", 10, 0).examples]
    assert made[0] != made[1]
    assert made[0] != [f"mmlu-{i}" for i in range(10)]


def test_colour_images_are_the_same_for_the_same_seed() -> None:
    first, again, other = (questions.colour_images(6, seed).examples for seed in (0, 0, 1))
    assert [e.media[0].data for e in first] == [e.media[0].data for e in again]
    assert [e.media[0].data for e in first] != [e.media[0].data for e in other]
    assert all(e.media[0].data.startswith(b"\x89PNG") and e.target in world.COLOURS for e in first)


@pytest.mark.parametrize(
    ("said", "named"),
    [("red", "red"), ("The image is a light **Gray**.", "grey"), ("It's blue, not green", "blue"), ("A reddish picture", None), ("", None)],
)
def test_colour_words(said: str, named: str | None) -> None:
    assert questions.colour_named(said) == named


@pytest.mark.parametrize(("tokens", "window", "stride"), [(1, 4, 2), (2, 4, 4), (10, 4, 2), (10, 4, 4), (11, 4, 3), (4, 4, 1)])
def test_windows_score_every_token_once(tokens: int, window: int, stride: int) -> None:
    made = list(perplexity.windows(tokens, window, stride))
    assert [i for w in made for i in range(w.scored, w.last)] == list(range(tokens))
    assert all(w.first <= w.scored < w.last and w.last - w.first <= window for w in made)


@pytest.mark.parametrize(("window", "stride"), [(4, 5), (4, 0), (0, 0)])
def test_windows_that_leave_tokens_out_are_refused(window: int, stride: int) -> None:
    with pytest.raises(ValueError, match="does not fit --window"):
        list(perplexity.windows(10, window, stride))


def test_a_killed_run_goes_on_behind_its_last_whole_row(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    header = {"eval": "mmlu", "model": "m", "url": "http://a"}
    assert results.start(path, header) == set()
    results.append(path, {"kind": "row", "id": "q-0"})
    with path.open("a") as file:
        file.write('{"kind": "row", "id": "q-')
    assert results.start(path, {**header, "url": "http://b"}) == {"q-0"}
    results.append(path, {"kind": "row", "id": "q-1"})
    results.append(path, {"kind": "summary"})
    assert [row["id"] for row in results.finished(path).rows] == ["q-0", "q-1"]
    with pytest.raises(ValueError, match=r"holds another run \(different: model\)"):
        results.start(path, {**header, "model": "other"})


def evaluate(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    parsed = parser.parse_args(["eval", *map(str, arguments)])
    return int(parsed.run(parsed))


def test_no_server_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some words")
    for command in (["mmlu"], ["colors"], ["text", tmp_path / "text"]):
        with pytest.raises(ValueError, match=r"no SGLang server answers at http://127\.0\.0\.1:1/v1/models") as error:
            evaluate(*command, "--url", "127.0.0.1:1", "--out", tmp_path / "out")
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_no_requests_in_flight_is_refused() -> None:
    with pytest.raises(ValueError, match="--concurrency 0 sends nothing"):
        evaluate("colors", "--concurrency", "0")


@pytest.mark.parametrize(
    ("made", "said"), [(b"", "is empty"), (b" \n", "is empty"), (b"\xff\xfe", "is not UTF-8"), (None, "is not a file")]
)
def test_texts_that_cannot_be_scored(made: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "text"
    if made is not None:
        path.write_bytes(made)
    with pytest.raises(ValueError, match=said):
        perplexity.read_text(path)


@pytest.mark.parametrize("text", ["hi there", "<bos>hi there"])
@pytest.mark.parametrize("added", [0, 1])
def test_a_text_is_scored_behind_one_bos(text: str, added: int) -> None:
    """Also where the server's tokenizer adds none, as the released ones, or one to a text that has one."""
    raw = tokenizer.load_raw(checkpoints.SHIPPED / "tiny-e2b")

    class Tokenizing(Endpoint):
        def post(self, path: str, body: dict[str, Any]) -> Any:
            assert path == "/tokenize"
            return {"tokens": [2] * added * body["add_special_tokens"] + raw.encode(body["prompt"], add_special_tokens=False).ids}

    assert perplexity._tokenise(Tokenizing(""), text) == ([2], raw.encode("hi there", add_special_tokens=False).ids)


@pytest.mark.parametrize("number", [0, -1])
def test_no_questions_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="asks nothing"):
        questions.four_choice("world", number, 0)
    with pytest.raises(ValueError, match="asks nothing"):
        questions.colour_images(number, 0)


def test_addresses_and_names() -> None:
    assert Endpoint.at("localhost:30000/v1/", None).url == "http://localhost:30000"
    assert Endpoint.at("https://host/v1", None).url == "https://host"
    assert short("/somewhere/tiny-e2b") == "tiny-e2b"
    assert short("google/gemma-4-E2B-it") == "google/gemma-4-E2B-it"
    assert short(None) is None
